//! Resident bytes of the engine's memory, and the bytes of it in large pages, from
//! `/proc/self/smaps`.
//!
//! With 4 KiB pages, a thread that reads memory also waits for address translation. With 16 threads
//! of a Xeon, the read speed is 113 to 127 GB/s with 4 KiB pages, and 135 GB/s with large pages.
//! Anonymous memory that will be used completely therefore requests large pages.
//!
//! Mapped files also request large pages
//! ([`Mapped::prefer_large_pages`](crate::storage::memory::Mapped::prefer_large_pages)). File
//! systems with large folios (XFS, and ext4 from Linux 6.16 on) then read 2 MiB at a time into the
//! page cache. The system maps them as one page. Pages that are already in the page cache do not
//! change.

use std::path::Path;

use ixc_files::read_system;

use crate::storage::memory::Region;

/// Substring in the names of mappings whose pages several sequences share. For these mappings, the
/// proportional size (`Pss`) is counted instead of the resident size.
const SHARED_PAGES_MARK: &str = "/memfd:";

/// Resident bytes of one kind of memory, and the bytes of it in large pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageUse {
    /// Name of the kind of memory.
    pub what: &'static str,
    /// Bytes that are in memory and mapped by this process.
    pub resident: u64,
    /// Resident bytes in pages of 2 MiB.
    pub large: u64,
}

/// A mapping of the process: its address range, its resident bytes, and its bytes in large pages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapping {
    begin: u64,
    end: u64,
    resident: u64,
    large: u64,
}

/// Regions of memory of the same kind, which are counted together.
#[derive(Debug)]
pub(crate) struct NamedRegions {
    /// Name of the kind of memory.
    pub what: &'static str,
    pub regions: Vec<Region>,
}

/// Returns the resident bytes of each list of regions, and its bytes in large pages. Lists without
/// resident bytes are omitted.
pub(crate) fn page_use(lists: &[NamedRegions]) -> Vec<PageUse> {
    let mappings = read_system(Path::new("/proc/self/smaps")).map_or_else(Vec::new, |text| mappings(&text));
    let uses = lists.iter().map(|NamedRegions { what, regions }| {
        let mut sum = PageUse { what, resident: 0, large: 0 };
        for region in regions {
            let begin = region.base() as u64;
            let (resident, large) = resident_bytes(&mappings, begin, begin.saturating_add(region.bytes()));
            sum.resident += resident;
            sum.large += large;
        }
        sum
    });
    uses.filter(|sum| sum.resident > 0).collect()
}

/// Returns the resident bytes of an address range, and its bytes in large pages. The system merges
/// adjacent mappings. If a mapping is larger than the range, its bytes are counted in proportion to
/// the length of the range.
fn resident_bytes(mappings: &[Mapping], begin: u64, end: u64) -> (u64, u64) {
    mappings.iter().fold((0, 0), |(resident, large), mapping| {
        let (all, common) =
            (mapping.end - mapping.begin, mapping.end.min(end).saturating_sub(mapping.begin.max(begin)));
        let part = |bytes: u64| (u128::from(bytes) * u128::from(common) / u128::from(all.max(1))) as u64;
        (resident + part(mapping.resident), large + part(mapping.large))
    })
}

/// Parses the text of `/proc/self/smaps`.
fn mappings(text: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    let mut is_shared = false;
    for line in text.lines() {
        let Some((name, rest)) = line.split_once([':', ' ']) else { continue };
        if let Some((begin, end)) = name.split_once('-') {
            // The first line of a mapping has the form `7f9d46c00000-7f9d52400000 r--s ...`.
            let address = |text: &str| u64::from_str_radix(text, 16).ok();
            if let (Some(begin), Some(end)) = (address(begin), address(end))
                && begin < end
            {
                found.push(Mapping { begin, end, ..Mapping::default() });
                is_shared = rest.contains(SHARED_PAGES_MARK);
            }
            continue;
        }
        let (Some(mapping), Some(kib)) = (found.last_mut(), rest.trim().strip_suffix(" kB")) else { continue };
        let bytes = kib.parse::<u64>().map_or(0, |kib| kib.saturating_mul(1024));
        match name {
            "Rss" if !is_shared => mapping.resident = bytes,
            "Pss" if is_shared => mapping.resident = bytes,
            "AnonHugePages" | "FilePmdMapped" | "ShmemPmdMapped" => mapping.large = mapping.large.saturating_add(bytes),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::Memory;

    const SMAPS: &str = "\
100000-500000 r--s 00000000 fe:00 9 /a model.gguf
Size:               4096 kB
Rss:                3072 kB
AnonHugePages:         0 kB
FilePmdMapped:      2048 kB
VmFlags: rd sh mr mw me ms hg
500000-900000 rw-p 00000000 00:00 0
Rss:                 400 kB
AnonHugePages:       200 kB
ShmemPmdMapped:        0 kB
900000-a00000 rw-p 00000000 00:01 7 /memfd:ixc-states (deleted)
Rss:                 400 kB
Pss:                 100 kB
";

    #[test]
    fn smaps_mappings_are_parsed_and_summed_by_range() {
        let found = mappings(SMAPS);
        let expected = [
            (0x10_0000, 0x50_0000, 3 << 20, 2 << 20),
            (0x50_0000, 0x90_0000, 400 << 10, 200 << 10),
            (0x90_0000, 0xa0_0000, 100 << 10, 0),
        ];
        let expected = expected.map(|(begin, end, resident, large)| Mapping { begin, end, resident, large });
        assert_eq!(found, expected);
        assert_eq!(resident_bytes(&found, 0x10_0000, 0x50_0000), (3 << 20, 2 << 20));
        assert_eq!(resident_bytes(&found, 0x30_0000, 0x70_0000), ((3 << 19) + (200 << 10), (2 << 19) + (100 << 10)));
        assert_eq!(resident_bytes(&found, 0, 0x10_0000), (0, 0));
        assert_eq!(mappings("no maps\n9-1 x\nRss: 1 kB"), []);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn touched_pages_are_counted_as_resident() {
        let memory = Memory::zeroed("a test", 8 << 20, false).unwrap();
        let regions = || vec![NamedRegions { what: "a test", regions: vec![memory.region()] }];
        // SAFETY: the memory is mapped, and no other code accesses it.
        (0..8 << 8).for_each(|page| unsafe { memory.region().base().add(page << 12).write(1) });
        let found = page_use(&regions());
        assert_eq!((found.len(), found[0].what), (1, "a test"));
        // The count may be higher than 8 MiB, because the system may merge adjacent mappings with
        // this one.
        assert!((4 << 20..=16 << 20).contains(&found[0].resident), "{found:?}");
        assert_eq!(page_use(&[NamedRegions { what: "nothing", regions: vec![] }]), []);
    }
}
