//! The CPUs near a drive, the system's metadata of the drive, and the scheduling of threads that
//! read from it.
//!
//! `/sys/dev/block/MAJOR:MINOR` links to the drive, whose PCIe device has a NUMA node. If anything
//! is unknown, reading works without it. Virtual machines and most desktop machines report one node
//! or none. Then no CPU is nearer to the drive than another.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::time::Duration;

use ixc_files::read_system;

pub use crate::processors::bind;
use crate::processors::{allowed_cpus, parse_list};

/// Returns the CPUs of a device's NUMA node. `device` is `st_dev` of a file on the device. Returns
/// `None` if the node is unknown, or if the machine has only one node.
pub fn processors_near(device: u64) -> Option<Vec<usize>> {
    near_in(Path::new("/sys"), device)
}

/// Returns those CPUs of the NUMA node of a file's drive on which this thread may run. Returns
/// `None` if the node is unknown, or if the machine has only one node.
pub fn processors_near_file(path: &Path) -> Option<Vec<usize>> {
    let mut cpus = processors_near(std::fs::metadata(path).ok()?.dev())?;
    // The parent process may have limited the CPUs of this thread.
    if let Some(allowed) = allowed_cpus() {
        cpus.retain(|cpu| allowed.contains(cpu));
    }
    Some(cpus).filter(|cpus| !cpus.is_empty())
}

fn near_in(sys: &Path, device: u64) -> Option<Vec<usize>> {
    let nodes = std::fs::read_dir(sys.join("devices/system/node")).ok()?.flatten();
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    if nodes.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count() < 2 {
        return None;
    }
    let (major, minor) = split(device);
    let link = sys.join(format!("dev/block/{major}:{minor}"));
    cpus_of(sys, node_of(&link.canonicalize().ok()?, 4)?)
}

fn cpus_of(sys: &Path, node: u32) -> Option<Vec<usize>> {
    let list = read_system(&sys.join(format!("devices/system/node/node{node}/cpulist")))?;
    parse_list(list.trim()).filter(|cpus| !cpus.is_empty())
}

/// Metadata of a drive, as the system reports it. Names come from firmware and may contain any
/// characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Device number, such as `259:3`.
    pub number: String,
    /// Device name, such as `nvme0n1p2`.
    pub name: String,
    /// Name of the drive's model, if the drive reports one.
    pub model: Option<String>,
    /// Capacity in bytes, if known.
    pub bytes: Option<u64>,
    /// PCIe root to which the drive is connected, such as `pci0000:00`.
    pub root: Option<String>,
    /// NUMA node of the PCIe root, if known.
    pub node: Option<u32>,
    /// CPUs of the NUMA node, if known.
    pub cpus: Option<Vec<usize>>,
}

/// Returns metadata of a file's drive. Returns `None` if the file is not on a block device (tmpfs,
/// NFS, most overlays).
pub fn place(path: &Path) -> Option<Place> {
    place_in(Path::new("/sys"), std::fs::metadata(path).ok()?.dev())
}

fn place_in(sys: &Path, device: u64) -> Option<Place> {
    let (major, minor) = split(device);
    let number = format!("{major}:{minor}");
    let folder = sys.join(format!("dev/block/{number}")).canonicalize().ok()?;
    let text = |path: &Path| {
        let text = read_system(path)?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let name = folder.file_name()?.to_string_lossy().into_owned();
    // The folder of a partition is inside its drive's folder, which has the model.
    let model = folder.ancestors().take(2).find_map(|folder| text(&folder.join("device/model")));
    let sectors = text(&folder.join("size")).and_then(|sectors| sectors.parse::<u64>().ok());
    let node = node_of(&folder, 4);
    let names = folder.strip_prefix(sys.canonicalize().ok()?).ok()?.components();
    let root = names
        .map(|name| name.as_os_str().to_string_lossy().into_owned())
        .find(|name| name.strip_prefix("pci").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit())));
    // The kernel counts in sectors of 512 bytes, whatever the drive's sector size is.
    let bytes = sectors.and_then(|sectors| sectors.checked_mul(512));
    Some(Place { number, name, model, bytes, root, node, cpus: node.and_then(|node| cpus_of(sys, node)) })
}

/// Returns the first `numa_node` on the path from the device upwards. A mapped device (LVM,
/// encryption, RAID) has the node of its first underlying device.
fn node_of(device: &Path, max_steps: usize) -> Option<u32> {
    for folder in device.ancestors() {
        if let Some(text) = read_system(&folder.join("numa_node")) {
            // A value of -1 means that the node is unknown, which does not parse as an unsigned
            // number.
            return text.trim().parse().ok();
        }
    }
    let slave = std::fs::read_dir(device.join("slaves")).ok()?.flatten().next()?;
    max_steps.checked_sub(1).and_then(|steps| node_of(&slave.path().canonicalize().ok()?, steps))
}

/// Splits a device number into its major and minor number, like glibc's `gnu_dev_major` and
/// `gnu_dev_minor`.
fn split(device: u64) -> (u64, u64) {
    let major = (device >> 8 & 0xfff) | (device >> 32 & 0xffff_f000);
    let minor = (device & 0xff) | (device >> 12 & 0xffff_ff00);
    (major, minor)
}

/// Time slice of a thread after [`prefer_short_slices`]. It is the minimum that the scheduler
/// accepts.
#[cfg(target_os = "linux")]
const SLICE: Duration = Duration::from_micros(100);

/// Asks the scheduler for short time slices for the calling thread. After a wake-up, the thread
/// then soon runs, before threads with default slices, even if all CPUs are busy. Linux supports
/// this in its default policy from 6.12 on. From 6.6 to 6.11, the running thread first finishes its
/// slice of a few milliseconds. Older versions prefer threads that slept for a long time anyway.
///
/// # Errors
/// Returns the system's error. The scheduling is then unchanged.
#[cfg(target_os = "linux")]
pub fn prefer_short_slices() -> io::Result<()> {
    // SAFETY: the call takes and returns numbers; the thread id 0 is this thread.
    match unsafe { libc::sched_getscheduler(0) } {
        libc::SCHED_OTHER => {}
        ..0 => return Err(io::Error::last_os_error()),
        _ => return Err(io::Error::other("the thread has another scheduling policy")),
    }
    // SAFETY: all fields are numbers, and 0 is a valid number.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    // SAFETY: the call takes and returns numbers. The thread id 0 is this thread, whose niceness
    // does not change.
    attributes.sched_nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    attributes.sched_runtime = SLICE.as_nanos() as u64;
    // SAFETY: the thread id 0 is this thread; the attributes have the size that they state.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does nothing, because only Linux has this setting.
///
/// # Errors
/// Always returns [`io::ErrorKind::Unsupported`].
#[cfg(not(target_os = "linux"))]
pub fn prefer_short_slices() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn short_slices_change_neither_policy_nor_niceness() {
        let policy_and_nice = || {
            // SAFETY: both calls take and return numbers; the thread id 0 is this thread.
            unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) }
        };
        std::thread::spawn(move || {
            // SAFETY: the call takes numbers; the thread id 0 is this thread. Raising the niceness
            // needs no privilege.
            assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, policy_and_nice().1 + 1) }, 0);
            let before = policy_and_nice();
            let result = prefer_short_slices();
            assert_eq!(policy_and_nice(), before);
            if before.0 == libc::SCHED_OTHER {
                // A container may forbid the call with another error. Wrong arguments would give
                // EINVAL or E2BIG.
                let refused = result.map_err(|error| error.raw_os_error()).err();
                assert!(refused.is_none_or(|errno| matches!(errno, Some(libc::EPERM | libc::ENOSYS))), "{refused:?}");
                let priority = libc::sched_param { sched_priority: 0 };
                // SAFETY: the thread id 0 is this thread, and the parameter is complete.
                assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &priority) }, 0);
                assert!(prefer_short_slices().unwrap_err().to_string().contains("another scheduling policy"));
                assert_eq!(policy_and_nice(), (libc::SCHED_BATCH, before.1));
            } else {
                assert!(result.unwrap_err().to_string().contains("another policy"));
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn numa_node_of_a_drive_is_found_in_sysfs() {
        let sys = std::env::temp_dir().join(format!("ixc-sys-{}", std::process::id()));
        let drive = sys.join("devices/pci0/nvme0n1/nvme0n1p2");
        let node = sys.join("devices/system/node/node1");
        let other = sys.join("devices/system/node/node0");
        for folder in [&drive, &node, &other, &sys.join("dev/block")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(sys.join("devices/pci0/numa_node"), "1\n").unwrap();
        std::fs::write(node.join("cpulist"), "4-7\n").unwrap();
        std::os::unix::fs::symlink(&drive, sys.join("dev/block/259:3")).unwrap();
        assert_eq!(near_in(&sys, 259 << 8 | 3), Some(vec![4, 5, 6, 7]));
        assert_eq!(near_in(&sys, 259 << 8 | 4), None);
        // With only one node, no CPU is nearer to the drive than another.
        std::fs::remove_dir(&other).unwrap();
        assert_eq!(near_in(&sys, 259 << 8 | 3), None);
        std::fs::create_dir(&other).unwrap();
        assert_eq!(near_in(&sys, 259 << 8 | 3), Some(vec![4, 5, 6, 7]));
        std::fs::create_dir_all(sys.join("devices/pci0/nvme0n1/device")).unwrap();
        std::fs::write(sys.join("devices/pci0/nvme0n1/device/model"), "Some Drive   \n").unwrap();
        std::fs::write(drive.join("size"), "2048\n").unwrap();
        let place = place_in(&sys, 259 << 8 | 3).unwrap();
        assert_eq!((&*place.number, &*place.name, place.model.as_deref()), ("259:3", "nvme0n1p2", Some("Some Drive")));
        assert_eq!((place.bytes, place.root.as_deref(), place.node), (Some(1 << 20), Some("pci0"), Some(1)));
        assert_eq!(place.cpus, Some(vec![4, 5, 6, 7]));
        assert_eq!(place_in(&sys, 259 << 8 | 4), None);
        std::fs::write(sys.join("devices/pci0/numa_node"), "-1\n").unwrap();
        assert_eq!(near_in(&sys, 259 << 8 | 3), None);
        std::fs::remove_dir_all(&sys).unwrap();
    }
}
