//! Tests of attention: over a cache, in parts, by tiles, with windows, sinks, slopes and chosen
//! entries.

use ixc_ir::format::Format;
use ixc_ir::graph::attrs::RopeStyle;
use ixc_kernels::{
    Attention, AttentionCombine, AttentionEntries, AttentionPart, AttentionWindow, Bits, Cache, Heads, RopeAppend,
    Scores,
};

use crate::support::Group;
use crate::{HALVES, ODD};

/// Returns attention over an f16 cache, with plain scores.
fn plain(group: u32, d: u32, dv: u32) -> AttentionPart {
    AttentionPart { heads: Heads { group, d, dv }, scores: Scores::with_scale(0.125), cache: HALVES }
}

/// Returns the kernel with its scores changed by `scores`.
fn with_scores(part: AttentionPart, scores: impl Fn(Scores) -> Scores) -> AttentionPart {
    AttentionPart { scores: scores(part.scores), ..part }
}

/// Returns the undivided attention of `part`, with `rows` rows computed together.
fn of_rows(part: AttentionPart, key_heads: u32, rows: u32) -> Attention {
    let AttentionPart { heads, scores, cache } = part;
    Attention { heads, scores, key_heads, rows, cache }
}

/// Returns the attention of `part` through a window, or in chunks.
fn of_window(part: AttentionPart, rows: u32, (window, chunked): (u32, bool)) -> AttentionWindow {
    let AttentionPart { heads, scores, cache } = part;
    AttentionWindow { heads, scores, key_heads: 2, rows, window, chunked, both: false, cache }
}

/// Returns the number of rows that are computed together for a group of `heads` heads.
fn several(heads: u32) -> u32 {
    (16 / heads).max(2)
}

#[test]
fn attention() {
    let mut group = Group::new("attention");
    for (heads, d, dv) in [
        (1, 64, 64),
        (2, 33, 16),
        (3, 16, 24),
        (4, 128, 128),
        (8, 64, 64),
        (9, 40, 8),
        (16, 32, 32),
        (2, 100, 100),
        (9, 7, 7),
        (1, 2, 1),
        (5, 10, 33),
    ] {
        let part = plain(heads, d, dv);
        for blocks in [1, 2, 3] {
            for rows in [1, several(heads)] {
                group.rows(of_rows(part, 1 + blocks % 2, rows), blocks);
            }
            group.rows(part, blocks);
            let part = with_scores(part, |scores| Scores { cap: Some(Bits::from_value(0.5)), ..scores });
            group.rows(of_rows(part, 2, several(heads)), blocks);
            group.rows(part, blocks);
        }
        for parts in [1, 2, 16] {
            group.rows(AttentionCombine { group: heads, dv, parts: 16 }, parts);
        }
    }
    group.done();
}

/// Tests attention over `blocks` blocks of a cache: by one row and several, in parts, and through a
/// window or in a chunk.
fn every_way(group: &mut Group, part: AttentionPart, blocks: u32, window: (u32, bool)) {
    let several = several(part.heads.group);
    for rows in [1, several] {
        group.rows(of_rows(part, 2, rows), blocks);
    }
    group.rows(part, blocks);
    group.rows(of_window(part, several, window), blocks);
}

/// Returns a window that begins inside a block, or (for two blocks) a chunk.
fn window_or_chunk(blocks: u32) -> (u32, bool) {
    if blocks == 2 { (32, true) } else { (20 * blocks, false) }
}

/// Tests scores that decrease with distance: plain, capped, with sinks, over windows and chunks,
/// with f16 and block caches.
#[test]
fn attention_slopes() {
    let mut group = Group::new("attention_slopes");
    let blocks_of = |keys, values| Cache { keys, values };
    for (heads, d, dv, cache) in [
        (1, 64, 64, HALVES),
        (3, 16, 24, HALVES),
        (8, 64, 64, HALVES),
        (5, 10, 33, HALVES),
        (1, 128, 128, blocks_of(Format::Q8_0, Format::Q8_0)),
        (3, 64, 96, blocks_of(Format::Q4_0, Format::F16)),
    ] {
        for blocks in [1, 2, 3] {
            let cap = (blocks == 2).then(|| Bits::from_value(0.5));
            let part = with_scores(AttentionPart { cache, ..plain(heads, d, dv) }, |scores| Scores {
                cap,
                sinks: blocks == 3,
                slopes: true,
                ..scores
            });
            every_way(&mut group, part, blocks, window_or_chunk(blocks));
        }
    }
    group.done();
}

#[test]
fn attention_sinks() {
    let mut group = Group::new("attention_sinks");
    for (heads, d, dv) in [(1, 64, 64), (3, 16, 24), (8, 64, 64), (5, 10, 33)] {
        let part = with_scores(plain(heads, d, dv), |scores| Scores { sinks: true, ..scores });
        (1..=3).for_each(|blocks| every_way(&mut group, part, blocks, (20 * blocks, false)));
    }
    group.done();
}

#[test]
fn attention_window() {
    let mut group = Group::new("attention_window");
    for (heads, d, dv) in [(1, 64, 64), (3, 16, 24), (9, 40, 8), (2, 100, 100), (5, 10, 33)] {
        let (part, rows) = (plain(heads, d, dv), several(heads));
        // The windows begin inside a block, at its edge, and before the first position.
        for (window, blocks) in [(1, 1), (20, 2), (64, 3), (500, 3)] {
            group.rows(of_window(part, rows, (window, false)), blocks);
        }
        // The rows are on both sides of the first position of a chunk.
        let part = with_scores(part, |scores| Scores { cap: Some(Bits::from_value(0.5)), ..scores });
        for (window, blocks) in [(32, 2), (64, 3)] {
            group.rows(of_window(part, rows, (window, true)), blocks);
        }
    }
    group.done();
}

/// Tests keys and values in quantised blocks: appended, and read by one row and several rows, in
/// parts and through windows.
#[test]
fn cached_blocks() {
    let mut group = Group::new("cached_blocks");
    for (keys, values) in [
        (Format::Q8_0, Format::Q8_0),
        (Format::Q4_0, Format::Q4_0),
        (Format::Q8_0, Format::F16),
        (Format::F16, Format::Q4_0),
    ] {
        let cache = Cache { keys, values };
        for (d, dv) in [(32, 32), (64, 64), (96, 160), (128, 32)] {
            let norm = (d == 64).then(|| Bits::from_value(1e-6));
            for style in [RopeStyle::Neox, RopeStyle::Norm] {
                group.rows(RopeAppend { d, dv, dims: 32, style, norm, cache }, 4);
            }
        }
        for (heads, d, dv, sinks) in
            [(1, 32, 32, false), (3, 64, 96, true), (4, 128, 128, false), (8, 64, 64, true), (11, 96, 160, false)]
        {
            let part = with_scores(AttentionPart { cache, ..plain(heads, d, dv) }, |scores| Scores {
                cap: sinks.then(|| Bits::from_value(0.5)),
                sinks,
                ..scores
            });
            (1..=3).for_each(|blocks| every_way(&mut group, part, blocks, window_or_chunk(blocks)));
        }
    }
    group.done();
}

/// Tests attention over entries and a window: rows that do not see all blocks, and incomplete
/// blocks.
#[test]
fn attention_over_chosen_entries() {
    let mut group = Group::new("attention_over_chosen_entries");
    for (group_of, n) in ODD.into_iter().enumerate() {
        for (sinks, window, every, blocks) in [(true, 20, 4, 1), (false, 64, 128, 2), (true, 500, 4, 3)] {
            let (group_of, dv) = (group_of as u32 + 1, 34 - n);
            let heads = Heads { group: group_of, d: n, dv };
            let scores = Scores { sinks, ..Scores::with_scale(0.125) };
            group.rows(AttentionEntries { heads, scores, window, every, chosen: Some(9) }, blocks);
        }
    }
    group.done();
}
