//! The pages of `docs/` as a book. The summary has each page once, and links between pages have a
//! target. If mdBook is installed, it builds the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ixc::architectures::architectures;
use ixc::ir::format::FORMATS;

use crate::documentation::{name, pages};
use crate::support::scratch;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the targets of a text's links, except those in code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let (mut links, mut fenced) = (Vec::new(), false);
    for (line, number) in text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        // Text between backticks is code.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        if !fenced {
            let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            links.extend(targets.map(|target| (number, target.to_owned())));
        }
    }
    links
}

/// Returns the names of a page's headings as link targets, in the form of GitHub and mdBook.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut fenced, mut seen) = (BTreeSet::new(), false, BTreeMap::<String, usize>::new());
    for line in text.lines() {
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let mut anchor = String::new();
        for c in heading.trim().chars() {
            match c {
                c if c.is_alphanumeric() || c == '_' || c == '-' => anchor.extend(c.to_lowercase()),
                ' ' => anchor.push('-'),
                _ => {}
            }
        }
        let count = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns the broken links of a page.
fn broken(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let mut broken = Vec::new();
    for (line, link) in links(&text) {
        if link.starts_with("https://") || link.starts_with("http://") {
            continue;
        }
        let (path, anchor) = link.split_once('#').map_or((&*link, None), |(path, anchor)| (path, Some(anchor)));
        let target = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
        // The book contains the pages of one folder, so a link to a folder has no target in it.
        let docs = root().join("docs");
        let leaves = page.starts_with(&docs) && (path.starts_with("../") || target.is_dir());
        let wrong = match (target.exists(), anchor) {
            (false, _) => "there is no such file",
            _ if leaves => "the book has no such page; name the file as code",
            (true, Some(anchor)) if !anchors(&fs::read_to_string(&target).unwrap()).contains(anchor) => {
                "the page has no such heading"
            }
            (true, _) => continue,
        };
        broken.push(format!("{}:{line}: {link}: {wrong}", name(page)));
    }
    broken
}

#[test]
fn every_page_is_in_the_summary_once() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut listed: Vec<String> = links(&summary).into_iter().map(|(_, link)| format!("docs/{link}")).collect();
    listed.sort();
    let pages = pages().iter().map(|page| name(page)).collect::<Vec<_>>();
    let expected: Vec<String> =
        pages.into_iter().filter(|page| page.starts_with("docs/") && page != "docs/SUMMARY.md").collect();
    assert_eq!(listed, expected);
}

#[test]
fn links_in_pages_are_valid() {
    let more = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "bench/README.md", "tests/golden/README.md"];
    let pages: Vec<PathBuf> = pages().into_iter().chain(more.map(|page| root().join(page))).collect();
    let broken: Vec<String> = pages.iter().flat_map(|page| broken(page)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let count: usize = pages.iter().map(|page| links(&fs::read_to_string(page).unwrap()).len()).sum();
    assert!(count > 50, "only {count} links were found");
}

/// Returns the file paths that a text names in code. Only paths whose first folder is in the
/// repository are returned.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let words = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    words.filter(|word| {
        let is_path = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
        let first = word.split_once('/').map(|(first, _)| first);
        // In the listing of a dump, `kernels/` is not the repository's folder `kernels`.
        is_path && first.is_some_and(|first| first != "kernels" && !first.is_empty() && root().join(first).is_dir())
    })
}

#[test]
fn files_named_in_pages_exist() {
    let more = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "editors/README.md"];
    let pages = pages().into_iter().chain(more.map(|page| root().join(page)));
    let mut count = 0;
    for page in pages {
        let (text, beside) = (fs::read_to_string(&page).unwrap(), page.parent().unwrap());
        for word in named(&text) {
            let is_there = root().join(word).exists() || beside.join(word).exists();
            assert!(is_there, "{}: there is no {word}", name(&page));
            count += 1;
        }
    }
    assert!(count > 100, "only {count} names were found");
}

#[test]
fn changelog_counts_match_the_tables() {
    let formats = FORMATS.iter().filter(|row| row.gguf_id.is_some()).count();
    let changes = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let said = format!("of {} architectures in {formats} block formats;", architectures().count());
    assert!(changes.contains(&said), "CHANGELOG.md does not say: {said}");
}

#[test]
fn broken_links_are_found() {
    let folder = scratch("book-links");
    let page = folder.join("page.md");
    fs::write(folder.join("other.md"), "# A `b`, c\n## x\n## x\n").unwrap();
    fs::write(&page, "[a](other.md#a-b-c) [b](other.md#x-1) [c](none.md) `[d](none.md)`\n```\n[e](none.md)\n```\n[f](other.md#y) [g](#h)\n")
        .unwrap();
    let found: Vec<String> = broken(&page).iter().map(|line| line.rsplit_once('/').unwrap().1.to_owned()).collect();
    let expected = [
        "page.md:1: none.md: there is no such file",
        "page.md:5: other.md#y: the page has no such heading",
        "page.md:5: #h: the page has no such heading",
    ];
    assert_eq!(found, expected);
}

#[test]
fn mdbook_makes_the_book() {
    let Ok(version) = Command::new("mdbook").arg("--version").output() else {
        println!("NOT RUN: mdbook is not installed; its summary and links were checked without it");
        return;
    };
    println!("tool: {}", String::from_utf8_lossy(&version.stdout).trim());
    let folder = scratch("book");
    let output = Command::new("mdbook").arg("build").arg(root()).arg("-d").arg(&folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(folder.join("tutorial.html").exists());
}
