//! Tests of outputs: which existing files are replaced, which are protected, and which files
//! remain.

use std::os::unix::fs::{MetadataExt, symlink};

use super::*;

const GREETING: Kind = Kind { name: "greeting", is: |head| head.starts_with(b"hello"), streams: true, private: false };
const PLACED: Kind = Kind { streams: false, ..GREETING };

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn with(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.at(name), text).unwrap();
        self.at(name)
    }

    /// Returns the names of the files in the folder.
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

fn save(path: &Path, guard: &Guard) -> Result<u64, OutputError> {
    Output::open(path, guard)?.write(|out| out.write_all(b"hello there"))
}

const OURS: Guard<'static> = Guard { kind: Some(&GREETING), force: false, inputs: &[] };

#[test]
fn foreign_file_is_replaced_only_with_force() {
    let scratch = Scratch::new();
    let new = scratch.at("new");
    assert_eq!(save(&new, &OURS).unwrap(), 11);
    save(&new, &OURS).unwrap();
    save(&scratch.with("empty", ""), &OURS).unwrap();
    let foreign = scratch.with("foreign", "precious");
    assert!(matches!(save(&foreign, &OURS), Err(OutputError::Foreign { kind: "greeting", .. })));
    assert_eq!(fs::read(&foreign).unwrap(), b"precious");
    save(&foreign, &Guard { force: true, ..OURS }).unwrap();
    assert_eq!(fs::read(&foreign).unwrap(), b"hello there");
    atomic_write(&foreign, b"cache").unwrap();
    assert_eq!(scratch.names(), ["empty", "foreign", "new"]);
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode() {
    let scratch = Scratch::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let secret = scratch.with("secret", "hello");
    for private in [0o600, 0o640] {
        fs::set_permissions(&secret, fs::Permissions::from_mode(private)).unwrap();
        save(&secret, &OURS).unwrap();
        assert_eq!(mode(&secret), private);
        let part = scratch.with("part", "hello");
        let place = Output::open(&secret, &OURS).unwrap().into_place().unwrap();
        place.take(&part, &open_regular(&part).unwrap()).unwrap();
        assert_eq!(mode(&secret), private);
    }
    save(&scratch.at("new"), &OURS).unwrap();
    assert_eq!(mode(&scratch.at("new")), mode(&scratch.with("other", "")));
}

#[test]
fn input_is_never_replaced_under_any_name() {
    let scratch = Scratch::new();
    let input = scratch.with("input", "hello, I am read");
    fs::hard_link(&input, scratch.at("hard")).unwrap();
    symlink("input", scratch.at("soft")).unwrap();
    symlink(scratch.at("soft"), scratch.at("soft to soft")).unwrap();
    for name in ["input", "hard", "soft", "soft to soft"] {
        let path = scratch.at(name);
        for input in [&input, &scratch.at("hard"), &scratch.at("soft")] {
            let inputs: &[&Path] = &[&scratch.at("missing"), input];
            for kind in [None, Some(&GREETING), Some(&PLACED)] {
                let error = Output::open(&path, &Guard { kind, force: true, inputs }).unwrap_err();
                assert!(matches!(error, OutputError::IsInput { .. }), "{error}");
            }
            // An input may be added after opening, or may be linked to the output path after
            // opening.
            let mut output = Output::open(&path, &OURS).unwrap();
            assert!(matches!(output.reads(input), Err(OutputError::IsInput { .. })));
        }
    }
    assert_eq!(fs::read(&input).unwrap(), b"hello, I am read");
    assert_eq!(scratch.names(), ["hard", "input", "soft", "soft to soft"]);
}

#[test]
fn input_error_precedes_file_kind_error() {
    let scratch = Scratch::new();
    let model = scratch.with("model", "GGUF");
    let error = Output::open(&model, &Guard { inputs: &[&model], ..OURS }).unwrap_err();
    assert!(matches!(error, OutputError::IsInput { .. }), "{error}");
}

#[test]
fn output_changed_during_work_is_not_replaced() {
    let scratch = Scratch::new();
    let input = scratch.with("input", "hello");
    let place = scratch.at("out");
    let begin = || Output::open(&place, &Guard { inputs: &[&input], ..OURS }).unwrap();
    let output = begin();
    fs::hard_link(&input, &place).unwrap();
    assert!(matches!(output.write(|out| out.write_all(b"x")), Err(OutputError::IsInput { .. })));
    fs::remove_file(&place).unwrap();
    let output = begin();
    fs::write(&place, "somebody else's").unwrap();
    assert!(matches!(output.write(|out| out.write_all(b"x")), Err(OutputError::Foreign { .. })));
    assert_eq!(fs::read(&place).unwrap(), b"somebody else's");
    assert_eq!(scratch.names(), ["input", "out"]);
}

#[test]
fn link_is_kept_and_its_target_is_replaced() {
    let scratch = Scratch::new();
    let target = scratch.with("target", "hello");
    symlink("target", scratch.at("link")).unwrap();
    save(&scratch.at("link"), &OURS).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"hello there");
    assert!(fs::symlink_metadata(scratch.at("link")).unwrap().is_symlink());
    scratch.with("target", "precious");
    assert!(matches!(save(&scratch.at("link"), &OURS), Err(OutputError::Foreign { .. })));
    fs::remove_file(&target).unwrap();
    assert!(matches!(save(&scratch.at("link"), &OURS), Err(OutputError::BrokenLink { .. })));
}

#[test]
fn unwritable_output_is_refused_before_the_work() {
    let scratch = Scratch::new();
    let file = scratch.with("file", "");
    let folder = scratch.0.path();
    let refused = [
        (scratch.at("no/folder"), "No such file"),
        (file.join("x"), "Not a directory"),
        (folder.to_owned(), "is a folder"),
        ("/".into(), "has no file name"),
        ("".into(), "has no file name"),
        (folder.join(".."), "has no file name"),
        ("/proc/nothing".into(), "cannot write"),
    ];
    for (path, why) in refused {
        let error = Output::open(&path, &OURS).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(scratch.names(), ["file"]);
}

#[test]
fn devices_and_pipes_are_written_directly() {
    assert_eq!(save("/dev/null".as_ref(), &OURS).unwrap(), 11);
    let placed = Guard { kind: Some(&PLACED), ..OURS };
    assert!(matches!(
        save("/dev/null".as_ref(), &placed),
        Err(OutputError::NotRegular { found: FileKind::CharacterDevice, .. })
    ));
    assert!(matches!(save("-".as_ref(), &placed), Err(OutputError::NoStream { .. })));
    if cfg!(target_os = "linux") {
        let full = save("/dev/full".as_ref(), &OURS).unwrap_err();
        assert!(matches!(&full, OutputError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull));
    }
    let scratch = Scratch::new();
    let pipe = scratch.at("pipe");
    rustix::fs::mkfifoat(CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let read = std::thread::scope(|scope| {
        let read = scope.spawn(|| fs::read(&pipe).unwrap());
        save(&pipe, &OURS).unwrap();
        read.join().unwrap()
    });
    assert_eq!(read, b"hello there");
}

#[test]
fn failed_write_leaves_no_file_and_keeps_the_old() {
    let scratch = Scratch::new();
    let path = scratch.with("out", "hello");
    let failed = Output::open(&path, &OURS).unwrap().write(|out| {
        out.write_all(&[7; 100_000])?;
        Err(io::Error::other("no"))
    });
    assert!(failed.unwrap_err().to_string().ends_with("cannot write: no"));
    drop(Output::open(&path, &OURS).unwrap());
    assert_eq!((scratch.names(), fs::read(&path).unwrap()), (vec!["out".into()], b"hello".to_vec()));
}

#[test]
fn named_and_unnamed_temporary_files_give_equal_output() {
    let scratch = Scratch::new();
    let expected = scratch.with("as others write it", "");
    for (name, named) in [("nameless", false), ("named", true)] {
        let path = scratch.at(name);
        let mut output = Output::open(&path, &OURS).unwrap();
        if named {
            output.to = To::Named(names_beside(&path).tempfile_in(scratch.0.path()).unwrap());
            let aside: Vec<_> = scratch.names().into_iter().filter(|name| name.starts_with(".named.")).collect();
            assert!(aside.len() == 1 && aside[0].len() == ".named..part".len() + TemporaryNames::RANDOM, "{aside:?}");
        }
        output.write(|out| out.write_all(b"hello")).unwrap();
        let there = fs::metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"hello");
        assert_eq!((there.mode(), there.nlink()), (fs::metadata(&expected).unwrap().mode(), 1));
    }
    assert_eq!(scratch.names(), ["as others write it", "named", "nameless"]);
}

#[test]
fn output_accepts_only_the_written_temporary_file() {
    let scratch = Scratch::new();
    let (path, part) = (scratch.at("plan"), scratch.at(".plan.part"));
    let place = || Output::open(&path, &OURS).unwrap().into_place().unwrap();
    let file = crate::private_files::open_own(&part).unwrap();
    fs::rename(&part, scratch.at("elsewhere")).unwrap();
    fs::write(&part, "another").unwrap();
    assert!(place().take(&part, &file).unwrap_err().to_string().contains("replaced by another file"));
    fs::rename(scratch.at("elsewhere"), &part).unwrap();
    place().take(&part, &file).unwrap();
    let expected = scratch.with("as others write it", "");
    assert_eq!(fs::metadata(&path).unwrap().mode(), fs::metadata(expected).unwrap().mode());
    assert!(Output::open("/dev/null".as_ref(), &OURS).unwrap().into_place().is_err());
}

#[test]
fn longest_file_names_can_be_written() {
    let scratch = Scratch::new();
    let path = scratch.at(&"n".repeat(255));
    save(&path, &OURS).unwrap();
    save(&path, &OURS).unwrap();
    assert_eq!(scratch.names().len(), 1);
}

#[test]
fn private_output_is_readable_only_by_its_user() {
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let [open, private] = ["open", "private"].map(|name| folder.path().join(name));
    save(&open, &OURS).unwrap();
    let secret = Kind { private: true, ..GREETING };
    let guard = Guard { kind: Some(&secret), ..OURS };
    save(&private, &guard).unwrap();
    assert_eq!((mode(&private), mode(&open) & 0o600), (0o600, 0o600));
    // A mode that the user set on the existing file is kept.
    fs::set_permissions(&private, fs::Permissions::from_mode(0o640)).unwrap();
    save(&private, &guard).unwrap();
    assert_eq!(mode(&private), 0o640);
}
