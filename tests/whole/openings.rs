//! Checks how often commands open their model file.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::support::{demo_model, ixc, scratch, stdout};

/// Bytes of an inotify event for a watched file. The event has no name, only watch, mask, cookie
/// and length.
const EVENT_BYTES: usize = 16;
/// Range of the mask's bytes in an event.
const MASK: std::ops::Range<usize> = 4..8;

/// Returns how often `run` opens a file, counted from the system's inotify events.
fn openings(path: &Path, run: impl FnOnce()) -> usize {
    // SAFETY: the call takes no pointer.
    let events = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
    assert!(events >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and nothing else owns it.
    let mut events = unsafe { File::from_raw_fd(events) };
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // Reads and closings are watched too, because the system merges equal consecutive events.
    let mask = libc::IN_OPEN | libc::IN_ACCESS | libc::IN_CLOSE;
    // SAFETY: the name ends in a zero byte and outlives the call.
    let watch = unsafe { libc::inotify_add_watch(events.as_raw_fd(), name.as_ptr(), mask) };
    assert!(watch >= 0, "{}", std::io::Error::last_os_error());
    let handle = events.as_raw_fd();
    let counting = std::thread::spawn(move || {
        let (mut count, mut event) = (0, [0; EVENT_BYTES]);
        loop {
            events.read_exact(&mut event).unwrap();
            let mask = u32::from_ne_bytes(event[MASK].try_into().unwrap());
            count += usize::from(mask & libc::IN_OPEN != 0);
            // This event reports that the watch was removed.
            if mask & libc::IN_IGNORED != 0 {
                return count;
            }
        }
    });
    run();
    // SAFETY: the call takes no pointer, and the thread keeps the descriptor open until this event.
    assert_eq!(unsafe { libc::inotify_rm_watch(handle, watch) }, 0);
    counting.join().unwrap()
}

#[test]
fn commands_open_their_model_once() {
    let folder = scratch("openings");
    let [model, plan, logits] = ["model.gguf", "model.ixp", "logits.npy"].map(|name| folder.join(name));
    fs::copy(demo_model(), &model).unwrap();
    assert_eq!(openings(&model, || drop(fs::read(&model).unwrap())), 1);
    let commands: [&[&str]; 8] = [
        &["inspect"],
        &["bench", "-p", "4", "-n", "0", "-r", "1", "-t", "1"],
        &["kernel", "list", "--model"],
        &["kernel", "list", "--op", "route", "--model"],
        &["dump", "--stage", "graph"],
        &["dump", "--stage", "fused"],
        &["compile", "-o", plan.to_str().unwrap()],
        &["logits", "--tokens", "1,2,3", "-o", logits.to_str().unwrap()],
    ];
    for arguments in commands {
        let run = || {
            let mut command = ixc(arguments);
            command.arg(&model);
            stdout(command);
        };
        assert_eq!(openings(&model, run), 1, "{arguments:?}");
    }
    // The argument names a kernel of the model.
    let kernel = format!("{}:route", model.display());
    for arguments in [&["kernel", "show"][..], &["kernel", "tune", "--target", "avx2", "--no-save"]] {
        let run = || {
            let mut command = ixc(arguments);
            drop(command.arg(&kernel).output().unwrap());
        };
        assert_eq!(openings(&model, run), 1, "{arguments:?}");
    }
    fs::remove_file(&logits).unwrap();
    let bench = || {
        let mut command = ixc(["bench", "-p", "4", "-n", "0", "-r", "1", "-t", "1"]);
        command.arg(&plan);
        stdout(command);
    };
    assert_eq!(openings(&plan, bench), 1);
    let run = || {
        let mut command = ixc(["logits", "--tokens", "1,2,3", "-o"]);
        command.arg(&logits).arg(&plan);
        stdout(command);
    };
    assert_eq!(openings(&plan, run), 1);
}
