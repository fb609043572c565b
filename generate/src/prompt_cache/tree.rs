//! Tree of pages and points.

use std::collections::HashSet;
use std::path::Path;

use ixc_runtime::saved::{Digest, SavedHeader};

use super::entry::Entry;

#[derive(Debug)]
pub(super) struct Page {
    pub(super) facts: SavedHeader,
    pub(super) entry: Entry,
    pub(super) next_level: Level,
}

#[derive(Debug)]
pub(super) struct Point {
    pub(super) facts: SavedHeader,
    pub(super) entry: Entry,
}

/// Pages and points that continue from one position.
#[derive(Debug, Default)]
pub(super) struct Level {
    pub(super) pages: Vec<Page>,
    pub(super) points: Vec<Point>,
}

/// Path to a level, and the names of the pages on it. The path changes when earlier pages are
/// removed; the names do not.
#[derive(Debug, Default)]
pub(super) struct EntryPath {
    pub(super) path: Vec<usize>,
    pub(super) names: Vec<Digest>,
}

impl Level {
    pub(super) fn at_mut(&mut self, path: &[usize]) -> Option<&mut Level> {
        path.iter().try_fold(self, |level, &page| level.pages.get_mut(page).map(|page| &mut page.next_level))
    }

    /// Returns the path to the level after the pages with these names.
    pub(super) fn path_of(&self, names: &[Digest]) -> Option<Vec<usize>> {
        let (mut level, mut path) = (self, Vec::new());
        for name in names {
            let at = level.pages.iter().position(|page| page.entry.name == *name)?;
            level = &level.pages[at].next_level;
            path.push(at);
        }
        Some(path)
    }

    /// Visits all entries, with their depths.
    pub(super) fn visit(&self, see: &mut impl FnMut(&Entry, usize)) {
        self.levels(0, &mut |level, depth| {
            level.pages.iter().map(|page| &page.entry).for_each(|entry| see(entry, depth));
            level.points.iter().map(|point| &point.entry).for_each(|entry| see(entry, depth));
        });
    }

    pub(super) fn levels<'l>(&'l self, depth: usize, see: &mut impl FnMut(&'l Level, usize)) {
        // Not recursive, because the depth is the number of pages of a context, which prompts
        // determine.
        let mut open = vec![(self, depth)];
        while let Some((level, depth)) = open.pop() {
            see(level, depth);
            open.extend(level.pages.iter().map(|page| (&page.next_level, depth + 1)));
        }
    }

    pub(super) fn visit_mut<'l>(&'l mut self, see: &mut impl FnMut(&'l mut Entry, usize)) {
        let mut open = vec![(self, 0)];
        while let Some((level, depth)) = open.pop() {
            for page in &mut level.pages {
                see(&mut page.entry, depth);
                open.push((&mut page.next_level, depth + 1));
            }
            level.points.iter_mut().for_each(|point| see(&mut point.entry, depth));
        }
    }

    /// Returns the names of entries to evict in order to reduce the counted bytes by `over`. The
    /// least recently used entries go first, children before their parents. Only entries last used
    /// before `before` count.
    pub(super) fn oldest(&self, mut over: u64, before: u64, counts: impl Fn(&Entry) -> bool) -> HashSet<Digest> {
        struct Node<'h> {
            last_use: u64,
            depth: usize,
            parent: Option<usize>,
            entry: &'h Entry,
        }
        let (mut nodes, mut open) = (Vec::new(), vec![(self, None, 0)]);
        while let Some((level, parent, depth)) = open.pop() {
            let node = |entry| Node { last_use: Entry::last_use(entry), depth, parent, entry };
            nodes.extend(level.points.iter().map(|point| node(&point.entry)));
            for page in &level.pages {
                open.push((&page.next_level, Some(nodes.len()), depth + 1));
                nodes.push(node(&page.entry));
            }
        }
        // A parent counts as used at least as recently as its children. Children come later in the
        // list.
        for i in (0..nodes.len()).rev() {
            let Node { last_use, parent, .. } = nodes[i];
            if let Some(parent) = parent {
                nodes[parent].last_use = nodes[parent].last_use.max(last_use);
            }
        }
        nodes.sort_by_key(|node| (node.last_use, std::cmp::Reverse(node.depth)));
        let mut evicted = HashSet::new();
        for Node { last_use, entry, .. } in nodes {
            if over == 0 || last_use >= before {
                break;
            }
            over = over.saturating_sub(if counts(entry) { entry.length } else { 0 });
            evicted.insert(entry.name);
        }
        evicted
    }
}

/// Drops the tree level by level instead of recursively, because a long context has many levels.
impl Drop for Level {
    fn drop(&mut self) {
        let mut open = std::mem::take(&mut self.pages);
        while let Some(mut page) = open.pop() {
            open.append(&mut page.next_level.pages);
        }
    }
}

impl Page {
    /// Removes the page's file, and those of all later pages.
    pub(super) fn remove_files(self, folder: Option<&Path>) {
        self.next_level.visit(&mut |entry, _| entry.remove_file(folder));
        self.entry.remove_file(folder);
    }
}
