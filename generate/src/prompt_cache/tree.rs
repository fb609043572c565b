//! Tree of pages and points.

use std::collections::HashSet;
use std::path::Path;

use ixc_runtime::saved::{Digest, Facts};

use super::held::Held;

#[derive(Debug)]
pub(super) struct Page {
    pub(super) facts: Facts,
    pub(super) held: Held,
    pub(super) below: Level,
}

#[derive(Debug)]
pub(super) struct Point {
    pub(super) facts: Facts,
    pub(super) held: Held,
}

/// Continuations from one position.
#[derive(Debug, Default)]
pub(super) struct Level {
    pub(super) pages: Vec<Page>,
    pub(super) points: Vec<Point>,
}

/// Path to a level, and the names of the pages on it. The path changes when earlier pages are
/// removed; the names do not.
#[derive(Debug, Default)]
pub(super) struct Way {
    pub(super) path: Vec<usize>,
    pub(super) names: Vec<Digest>,
}

impl Level {
    pub(super) fn at_mut(&mut self, path: &[usize]) -> Option<&mut Level> {
        path.iter().try_fold(self, |level, &page| level.pages.get_mut(page).map(|page| &mut page.below))
    }

    /// Returns the path to the level after the pages with these names.
    pub(super) fn path_of(&self, names: &[Digest]) -> Option<Vec<usize>> {
        let (mut level, mut path) = (self, Vec::new());
        for name in names {
            let at = level.pages.iter().position(|page| page.held.name == *name)?;
            level = &level.pages[at].below;
            path.push(at);
        }
        Some(path)
    }

    /// Visits all entries, with their depths.
    pub(super) fn visit(&self, see: &mut impl FnMut(&Held, usize)) {
        self.levels(0, &mut |level, depth| {
            level.pages.iter().map(|page| &page.held).for_each(|held| see(held, depth));
            level.points.iter().map(|point| &point.held).for_each(|held| see(held, depth));
        });
    }

    pub(super) fn levels<'l>(&'l self, depth: usize, see: &mut impl FnMut(&'l Level, usize)) {
        // Without recursion: the depth is the number of a context's pages, which a prompt
        // determines.
        let mut open = vec![(self, depth)];
        while let Some((level, depth)) = open.pop() {
            see(level, depth);
            open.extend(level.pages.iter().map(|page| (&page.below, depth + 1)));
        }
    }

    pub(super) fn visit_mut<'l>(&'l mut self, see: &mut impl FnMut(&'l mut Held, usize)) {
        let mut open = vec![(self, 0)];
        while let Some((level, depth)) = open.pop() {
            for page in &mut level.pages {
                see(&mut page.held, depth);
                open.push((&mut page.below, depth + 1));
            }
            level.points.iter_mut().for_each(|point| see(&mut point.held, depth));
        }
    }

    /// Returns the names of entries to evict in order to reduce the counted bytes by `over`. The
    /// least recently used entries go first, children before their parents. Only entries last used
    /// before `before` count.
    pub(super) fn oldest(&self, mut over: u64, before: u64, counts: impl Fn(&Held) -> bool) -> HashSet<Digest> {
        struct Node<'h> {
            used: u64,
            depth: usize,
            parent: Option<usize>,
            held: &'h Held,
        }
        let (mut nodes, mut open) = (Vec::new(), vec![(self, None, 0)]);
        while let Some((level, parent, depth)) = open.pop() {
            let node = |held| Node { used: Held::used(held), depth, parent, held };
            nodes.extend(level.points.iter().map(|point| node(&point.held)));
            for page in &level.pages {
                open.push((&page.below, Some(nodes.len()), depth + 1));
                nodes.push(node(&page.held));
            }
        }
        // A parent counts as used at least as recently as its children, which come later in the
        // list.
        for i in (0..nodes.len()).rev() {
            let Node { used, parent, .. } = nodes[i];
            if let Some(parent) = parent {
                nodes[parent].used = nodes[parent].used.max(used);
            }
        }
        nodes.sort_by_key(|node| (node.used, std::cmp::Reverse(node.depth)));
        let mut doomed = HashSet::new();
        for Node { used, held, .. } in nodes {
            if over == 0 || used >= before {
                break;
            }
            over = over.saturating_sub(if counts(held) { held.length } else { 0 });
            doomed.insert(held.name);
        }
        doomed
    }
}

/// A long context has a page on each of many levels: drop the tree level by level, not recursively.
impl Drop for Level {
    fn drop(&mut self) {
        let mut open = std::mem::take(&mut self.pages);
        while let Some(mut page) = open.pop() {
            open.append(&mut page.below.pages);
        }
    }
}

impl Page {
    /// Removes the page's file, and those of all later pages.
    pub(super) fn remove_files(self, folder: Option<&Path>) {
        self.below.visit(&mut |held, _| held.remove_file(folder));
        self.held.remove_file(folder);
    }
}
