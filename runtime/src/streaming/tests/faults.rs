//! Tests of failing drives and files.

use std::sync::Arc;

use ixc_files::changed::ChangedFile;

use super::super::backend::Read;
use super::super::counters::Class;
use super::super::drive::{BackendChoice, EndedJob};
use super::super::files::PAGE;
use super::super::queue::{ReadJob, Wake};
use super::super::{Extent, StreamError};
use super::planted::{Fate, Gate, Planted};
use super::*;

const EIO: i32 = 5;
const EINVAL: i32 = 22;

fn blocks(count: u64, bytes: u64) -> Vec<ReadJob> {
    let part = |i: u64| (Extent { file: 0, offset: i * bytes, bytes, at: 0 }, i * bytes);
    (0..count).map(|tag| ReadJob { tag, class: Class::Routed, parts: vec![part(tag)] }).collect()
}

fn planted(length: u64, mut fate: impl FnMut(&Read) -> Fate + Send + 'static) -> Rig {
    Rig::planted(&pattern(length), 4, 4 * PAGE, move |queue| {
        Planted::new(queue.files(), &Arc::new(Gate::default()), move |read| fate(read))
    })
}

#[test]
fn short_and_interrupted_reads_are_resumed() {
    let mut random = Random::new(3);
    let rig = planted(64 * PAGE, move |_| match random.below(5) {
        0 => Fate::Errno(4),
        1 => Fate::Errno(11),
        2 => Fate::Short(1 + random.below(5000)),
        3 => Fate::Short(0),
        _ => Fate::Good,
    });
    rig.submit(blocks(8, 8 * PAGE));
    assert!(rig.results(8).iter().all(|(_, result)| result.is_ok()));
    assert!(rig.read(0, 64 * PAGE) == pattern(64 * PAGE));
    let counters = rig.queue.counters();
    assert!(counters.retries > 0);
    assert_eq!(counters.bytes(), 64 * PAGE);
}

#[test]
fn short_direct_read_restarts_at_its_page() {
    let (queue, file) = Rig::parts(&pattern(8 * PAGE), true, 8 * PAGE);
    if !queue.files().is_direct(0) {
        println!("NOT RUN: the temporary folder has no O_DIRECT: {:?}", queue.files().notes());
        return;
    }
    let (sender, results) = mpsc::channel();
    let (shared, offsets) = (Arc::clone(&queue), Arc::new(Mutex::new(Vec::new())));
    let log = Arc::clone(&offsets);
    let drive = Drive::start_with(&DriveOptions::default(), &queue, Arc::new(Mutex::new(sender)), move || {
        let planted = Planted::new(shared.files(), &Arc::new(Gate::default()), move |read| {
            log.lock().unwrap().push((read.offset, read.into.bytes()));
            // O_DIRECT reads only whole pages. This read returns three of them.
            if read.offset == 0 { Fate::Short(3 * PAGE) } else { Fate::Good }
        });
        Ok((Box::new(planted) as Box<dyn Backend>, Vec::new()))
    })
    .unwrap();
    queue.submit(blocks(1, 8 * PAGE)).unwrap();
    assert_eq!(results.recv().unwrap(), [EndedJob { tag: 0, result: Ok(()) }]);
    assert_eq!(*offsets.lock().unwrap(), [(0, 8 * PAGE), (3 * PAGE, 5 * PAGE)]);
    drop((drive, file));
}

#[test]
fn failed_read_fails_only_its_block() {
    let rig = planted(64 * PAGE, |read| if read.offset == 20 * PAGE { Fate::Errno(EIO) } else { Fate::Good });
    rig.submit(blocks(8, 8 * PAGE));
    for (tag, result) in rig.results(8) {
        match tag {
            2 => {
                let Err(StreamError::Read { file: 0, offset, bytes, errno: EIO, path, why }) = &result else {
                    panic!("{result:?}");
                };
                assert_eq!((*offset, *bytes, path), (20 * PAGE, 4 * PAGE, &rig._file.0));
                assert!(why.contains("nput/output"), "{why}");
            }
            _ => {
                assert_eq!(result, Ok(()));
                let at = tag * 8 * PAGE;
                assert!(rig.read(at, 8 * PAGE) == pattern(64 * PAGE)[at as usize..][..8 * PAGE as usize]);
            }
        }
    }
    // The tag can be used again, and the drive continues to work.
    rig.submit(blocks(1, 8 * PAGE));
    assert_eq!(rig.results(1), [(0, Ok(()))]);
}

#[test]
fn endless_eagain_is_an_error() {
    let rig = planted(8 * PAGE, |_| Fate::Errno(11));
    rig.submit(blocks(1, PAGE));
    assert!(matches!(rig.results(1)[0].1, Err(StreamError::Read { errno: 11, .. })));
}

#[test]
fn truncated_file_is_an_error_with_offset() {
    for (choice, direct) in
        [(BackendChoice::Auto, true), (BackendChoice::Auto, false), (BackendChoice::ThreadedReader, true)]
    {
        let rig = Rig::new(&pattern(64 * PAGE), choice, direct, 4 * PAGE);
        println!("{choice:?}: {:?}", rig.drive.report());
        std::fs::File::options().write(true).open(&rig._file.0).unwrap().set_len(20 * PAGE + 100).unwrap();
        rig.submit(blocks(8, 8 * PAGE));
        for (tag, result) in rig.results(8) {
            match (tag, result) {
                (0..=1, result) => assert_eq!(result, Ok(())),
                (tag, Err(StreamError::Truncated { found, expected, .. })) => {
                    assert_eq!(found, 20 * PAGE + 100);
                    assert!(expected > found && expected <= (tag + 1) * 8 * PAGE, "{tag} {expected}");
                }
                other => panic!("{other:?}"),
            }
        }
        let changed = rig.queue.files().check_unchanged();
        assert!(matches!(changed, Err(StreamError::Changed(ChangedFile { what: "length", .. }))), "{changed:?}");
    }
}

#[test]
fn refused_direct_reads_fall_back_to_page_cache() {
    let (queue, file) = Rig::parts(&pattern(64 * PAGE), true, 4 * PAGE);
    if !queue.files().is_direct(0) {
        println!("NOT RUN: the temporary folder has no O_DIRECT: {:?}", queue.files().notes());
        return;
    }
    let (sender, results) = mpsc::channel();
    let shared = Arc::clone(&queue);
    let drive = Drive::start_with(&DriveOptions::default(), &queue, Arc::new(Mutex::new(sender)), move || {
        let files = Arc::clone(shared.files());
        let planted = Planted::new(shared.files(), &Arc::new(Gate::default()), move |_| {
            if files.is_direct(0) { Fate::Errno(EINVAL) } else { Fate::Good }
        });
        Ok((Box::new(planted) as Box<dyn Backend>, Vec::new()))
    })
    .unwrap();
    queue.submit(blocks(8, 8 * PAGE)).unwrap();
    let mut count = 0;
    while count < 8 {
        let ended = results.recv().unwrap();
        assert!(ended.iter().all(|job| job.result.is_ok()), "{ended:?}");
        count += ended.len();
    }
    let notes = drive.report().notes;
    assert!(notes.len() == 1 && notes[0].contains("page cache"), "{notes:?}");
    drop(file);
    // Without O_DIRECT, EINVAL is an error like any other.
    let rig = planted(8 * PAGE, |_| Fate::Errno(EINVAL));
    rig.submit(blocks(1, PAGE));
    assert!(matches!(rig.results(1)[0].1, Err(StreamError::Read { errno: EINVAL, .. })));
}

#[test]
fn unresponsive_drive_is_dropped_and_keeps_its_memory() {
    for cancels in [true, false] {
        let gate = Arc::new(Gate::default());
        let inner = Arc::clone(&gate);
        let rig = Rig::planted(&pattern(64 * PAGE), 2, PAGE, move |queue| {
            let mut planted = Planted::new(queue.files(), &inner, |_| Fate::Stuck);
            planted.cancels = cancels;
            planted
        });
        rig.submit(blocks(8, 8 * PAGE));
        while rig.queue.counters().max_outstanding < 2 {
            std::thread::yield_now();
        }
        let memory = Arc::downgrade(rig.queue.reservation());
        let Rig { drive, queue, results, _file } = rig;
        drop(drive);
        // The queue accepts no more jobs.
        assert!(matches!(queue.submit(blocks(1, PAGE)), Err(StreamError::Closed { .. })));
        drop(queue);
        assert_eq!(memory.upgrade().is_some(), !cancels);
        gate.open();
        // Each waiting job gets a result. The channel closes when the drive's thread ends.
        let reported: Vec<_> = results.iter().flatten().collect();
        assert_eq!(reported.len(), 8);
        assert!(reported.iter().all(|job| matches!(job.result, Err(StreamError::Closed { .. }))), "{reported:?}");
        while memory.upgrade().is_some() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_backend_that_breaks_or_panics_ends_all_jobs() {
    struct Broken(bool);
    impl Wake for Broken {
        fn wake(&self) {}
    }
    impl Backend for Broken {
        fn describe(&self) -> String {
            "broken".into()
        }
        fn waker(&self) -> Arc<dyn Wake> {
            Arc::new(Broken(false))
        }
        unsafe fn start(&mut self, _: Read) {
            assert!(!self.0, "planted panic");
        }
        fn wait(&mut self, _: &mut Vec<super::super::backend::Completion>) -> std::io::Result<()> {
            // Other backends would wait here until there is a job. This backend cannot wait.
            std::thread::yield_now();
            if self.0 { Ok(()) } else { Err(std::io::Error::other("planted error")) }
        }
    }
    let rig = Rig::planted(&pattern(PAGE), 2, PAGE, |_| Broken(true));
    rig.submit(blocks(1, PAGE));
    let results = rig.results(1);
    assert!(matches!(&results[0].1, Err(StreamError::Closed { why }) if why.contains("planted panic")), "{results:?}");
    let rig = Rig::planted(&pattern(PAGE), 2, PAGE, |_| Broken(false));
    // The backend may fail before or after this call.
    match rig.queue.submit(blocks(1, PAGE)) {
        Ok(()) => {
            assert!(matches!(&rig.results(1)[0].1, Err(StreamError::Closed { why }) if why.contains("planted error")))
        }
        Err(error) => assert!(matches!(error, StreamError::Closed { .. })),
    }
    let (queue, _file) = Rig::parts(&pattern(PAGE), false, PAGE);
    let (sender, _results) = mpsc::channel();
    let none = Drive::start_with(&DriveOptions::default(), &queue, Arc::new(Mutex::new(sender)), || {
        Err("planted refusal".into())
    });
    assert!(matches!(none.map(|_| ()), Err(StreamError::Closed { why }) if why == "planted refusal"));
}

#[test]
fn files_that_were_replaced_changed_or_removed_are_noticed() {
    let open = || {
        let file = Temporary::new(&pattern(PAGE));
        let files = Files::open(std::slice::from_ref(&file.0), true).unwrap();
        assert_eq!(files.check_unchanged(), Ok(()));
        (file, files)
    };
    let what = |files: &Files| match files.check_unchanged() {
        Err(StreamError::Changed(ChangedFile { what, .. })) => what,
        other => panic!("{other:?}"),
    };
    let (file, files) = open();
    let other = Temporary::new(&pattern(PAGE));
    std::fs::rename(&other.0, &file.0).unwrap();
    assert_eq!(what(&files), "device and inode");

    let (file, files) = open();
    std::fs::write(&file.0, pattern(2 * PAGE)).unwrap();
    assert_eq!(what(&files), "length");

    let (file, files) = open();
    let handle = std::fs::File::options().write(true).open(&file.0).unwrap();
    handle.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(what(&files), "time of change");

    let (file, files) = open();
    std::fs::remove_file(&file.0).unwrap();
    assert_eq!(what(&files), "path");

    let missing = Files::open(std::slice::from_ref(&file.0), true);
    assert!(matches!(missing, Err(StreamError::Open { .. })));
    let folder = Files::open(&[std::env::temp_dir()], false);
    assert!(matches!(folder, Err(StreamError::Open { .. })));
}

#[cfg(target_os = "linux")]
#[test]
fn refused_io_uring_falls_back_to_threads() {
    // The refusal lasts as long as the thread, so the test has a thread of its own. The drive's
    // thread inherits the refusal.
    let run = || {
        if let Err(error) = crate::refused::refuse(libc::SYS_io_uring_setup) {
            println!("NOT RUN: no system call can be refused here: {error}");
            return;
        }
        let rig = Rig::new(&pattern(64 * PAGE), BackendChoice::Auto, true, 4 * PAGE);
        let report = rig.drive.report();
        println!("{report:?}");
        assert!(report.backend.contains("pread"), "{report:?}");
        assert!(report.notes.iter().any(|note| note.contains("io_uring is refused")), "{report:?}");
        rig.submit(blocks(8, 8 * PAGE));
        assert!(rig.results(8).iter().all(|(_, result)| result.is_ok()));
        assert!(rig.read(0, 64 * PAGE) == pattern(64 * PAGE));
    };
    std::thread::spawn(run).join().unwrap();
}
