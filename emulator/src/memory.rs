//! Guest memory. The address range of each buffer is far from all others, so that an access even
//! one byte outside of a buffer faults.
//!
//! This file has all `unsafe` code for the emulator's memory accesses. A region is the memory of
//! one buffer. It lies in the middle of a slot of 2^38 addresses, and the upper bits of an address
//! are the number of the slot. If an access is outside of all regions, its fault names the nearest
//! region.
//!
//! ```
//! use ixc_emulator::memory::{Memory, Slice};
//!
//! let mut bytes = [1u8, 2, 3, 4];
//! let mut memory = Memory::new();
//! let at = memory.map(Slice::write("x", &mut bytes)).unwrap();
//! assert_eq!(memory.load::<2>(at + 2).unwrap(), [3, 4]);
//! memory.store(at, [9]).unwrap();
//! assert_eq!(
//!     memory.load::<2>(at + 3).unwrap_err().to_string(),
//!     "load of 2 bytes at byte 3 of buffer `x`, which has 4 bytes"
//! );
//! ```
//!
//! Invariant: host memory is accessed only inside a region, and written only if the region is
//! writable.

use std::marker::PhantomData;

use crate::fault::{FaultKind, Trap};

/// Number of addresses of a slot, as a power of two: 256 GiB.
const SLOT_BITS: u32 = 38;
/// Offset of a region in its slot. It is far from the slots before and after.
const MIDDLE: u64 = 1 << (SLOT_BITS - 1);
/// Number of slots below the canonical limit of 2^47. Slot 0 is reserved for null pointers.
const SLOTS: usize = 1 << (47 - SLOT_BITS);
/// Number of bytes below `rsp` that a function may use (System V).
const RED_ZONE: u64 = 128;
/// Alignment in bytes up to which guest addresses and host addresses have the same low bits.
const ALIGNMENT: u64 = 64;

/// A buffer that is passed to a call.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    name: &'a str,
    ptr: *mut u8,
    len: usize,
    writable: bool,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> Slice<'a> {
    /// Returns a buffer with this pointer and this length.
    ///
    /// # Safety
    /// For `'a`, `ptr` must be valid for reads of `len` bytes and, if `writable`, for writes. Other
    /// threads may use the same bytes only if neither they nor the emulated code write them.
    pub unsafe fn new(name: &'a str, ptr: *mut u8, len: usize, writable: bool) -> Slice<'a> {
        Slice { name, ptr, len, writable, life: PhantomData }
    }

    /// Returns a buffer that emulated code may only read.
    pub fn read(name: &'a str, bytes: &'a [u8]) -> Slice<'a> {
        Slice { name, ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), writable: false, life: PhantomData }
    }

    /// Returns a buffer that emulated code may read and write.
    pub fn write(name: &'a str, bytes: &'a mut [u8]) -> Slice<'a> {
        Slice { name, ptr: bytes.as_mut_ptr(), len: bytes.len(), writable: true, life: PhantomData }
    }
}

struct Region<'a> {
    slice: Slice<'a>,
    base: u64,
}

/// Memory that emulated code can access.
pub struct Memory<'a> {
    /// Region of each slot. The region of slot 0 is empty.
    regions: Vec<Region<'a>>,
    /// Number of the slot with the stack.
    stack: usize,
    /// Lowest address of the stack that may be accessed with the current stack pointer.
    floor: u64,
    /// Lowest offset in the stack to which a store was made.
    lowest: usize,
}

impl<'a> Memory<'a> {
    /// Returns memory without buffers.
    pub fn new() -> Memory<'a> {
        let null = Region { slice: Slice::read("null", &[]), base: 0 };
        Memory { regions: vec![null], stack: usize::MAX, floor: 0, lowest: usize::MAX }
    }

    /// Adds a buffer and returns its guest address. The low 6 bits of this address are those of the
    /// host address.
    ///
    /// # Errors
    /// Fails if the buffer is too large, or if there are too many buffers.
    pub fn map(&mut self, slice: Slice<'a>) -> Result<u64, Trap> {
        let slot = self.regions.len();
        if slot >= SLOTS || slice.len as u64 >= MIDDLE - ALIGNMENT {
            let reason = format!(
                "the emulator has no addresses left for buffer `{}`, number {slot} with {} bytes",
                slice.name, slice.len
            );
            return Err(Box::new(FaultKind::Arguments { reason }));
        }
        let base = ((slot as u64) << SLOT_BITS) + MIDDLE + (slice.ptr.addr() as u64 % ALIGNMENT);
        self.regions.push(Region { slice, base });
        Ok(base)
    }

    /// Adds the stack, and returns the address after its last byte.
    ///
    /// # Errors
    /// Fails like [`Memory::map`].
    pub fn map_stack(&mut self, slice: Slice<'a>) -> Result<u64, Trap> {
        self.stack = self.regions.len();
        self.lowest = slice.len;
        let len = slice.len as u64;
        Ok(self.map(slice)? + len)
    }

    /// Sets the stack pointer, which determines the part of the stack that may be accessed.
    #[inline]
    pub fn set_stack_pointer(&mut self, rsp: u64) {
        self.floor = rsp.wrapping_sub(RED_ZONE);
    }

    /// Returns the lowest offset in the stack to which a store was made.
    pub fn lowest_stack_write(&self) -> usize {
        self.lowest
    }

    /// Whether an access to these bytes would be inside a buffer.
    pub fn contains(&self, address: u64, bytes: usize) -> bool {
        self.host(address, bytes, false).is_ok()
    }

    /// Checks whether a store to these bytes would fault.
    ///
    /// # Errors
    /// Fails like [`Memory::store`].
    pub fn check_store(&self, address: u64, bytes: usize) -> Result<(), Trap> {
        self.host(address, bytes, true).map(|_| ())
    }

    /// Loads `N` bytes.
    ///
    /// # Errors
    /// Fails if the bytes are not all in the same buffer.
    #[inline]
    pub fn load<const N: usize>(&self, address: u64) -> Result<[u8; N], Trap> {
        let host = self.host(address, N, false)?;
        // SAFETY: `host` returns a pointer to N bytes that are valid for reads. Arrays of bytes
        // need no alignment.
        Ok(unsafe { host.cast::<[u8; N]>().read_unaligned() })
    }

    /// Stores `N` bytes.
    ///
    /// # Errors
    /// Fails if the bytes are not all in the same writable buffer.
    #[inline]
    pub fn store<const N: usize>(&mut self, address: u64, bytes: [u8; N]) -> Result<(), Trap> {
        let host = self.host(address, N, true)?;
        self.wrote(address);
        // SAFETY: `host` returns a pointer to N bytes that are valid for writes. Arrays of bytes
        // need no alignment.
        unsafe { host.cast::<[u8; N]>().write_unaligned(bytes) };
        Ok(())
    }

    /// Loads bytes to `into`, as many as it has.
    ///
    /// # Errors
    /// Fails like [`Memory::load`].
    #[inline]
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Trap> {
        let host = self.host(address, into.len(), false)?;
        // SAFETY: `host` returns a pointer that is valid for reads of that many bytes. `into`
        // belongs to the emulator.
        unsafe { std::ptr::copy_nonoverlapping(host, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Stores all bytes of `from`.
    ///
    /// # Errors
    /// Fails like [`Memory::store`].
    #[inline]
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Trap> {
        let host = self.host(address, from.len(), true)?;
        self.wrote(address);
        // SAFETY: `host` returns a pointer that is valid for writes of that many bytes. `from`
        // belongs to the emulator.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), host, from.len()) };
        Ok(())
    }

    fn slot(address: u64) -> usize {
        (address >> SLOT_BITS) as usize
    }

    /// Records a store to the stack, for the lowest written offset.
    #[inline]
    fn wrote(&mut self, address: u64) {
        let slot = Memory::slot(address);
        if slot == self.stack
            && let Some(region) = self.regions.get(slot)
        {
            self.lowest = self.lowest.min(address.wrapping_sub(region.base) as usize);
        }
    }

    /// Returns the host address of an access. Fails if the access is not permitted.
    #[inline]
    fn host(&self, address: u64, bytes: usize, write: bool) -> Result<*mut u8, Trap> {
        let slot = Memory::slot(address);
        if let Some(region) = self.regions.get(slot) {
            let offset = address.wrapping_sub(region.base);
            let len = region.slice.len as u64;
            let inside = offset <= len && bytes as u64 <= len - offset;
            if inside && (region.slice.writable || !write) && (slot != self.stack || address >= self.floor) {
                return Ok(region.slice.ptr.wrapping_add(offset as usize));
            }
        }
        Err(self.refuse(address, bytes, write))
    }

    #[cold]
    fn refuse(&self, address: u64, bytes: usize, write: bool) -> Trap {
        let slot = Memory::slot(address);
        let Some(region) = self.regions.get(slot).filter(|_| slot > 0) else {
            return Box::new(FaultKind::Unmapped { address, bytes, write });
        };
        let offset = address.wrapping_sub(region.base).cast_signed();
        let (buffer, size) = (region.slice.name.to_string(), region.slice.len);
        let inside = usize::try_from(offset).is_ok_and(|o| o.checked_add(bytes).is_some_and(|end| end <= size));
        Box::new(match (inside, slot == self.stack) {
            (false, _) => FaultKind::OutOfBounds { buffer, offset, bytes, size, write },
            (true, true) => FaultKind::RedZone { below: (self.floor + RED_ZONE).saturating_sub(address), write },
            (true, false) => FaultKind::ReadOnly { buffer, offset, bytes },
        })
    }
}

impl Default for Memory<'_> {
    fn default() -> Self {
        Memory::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_bounds_access_is_refused_on_both_sides() {
        let (mut a, b) = ([0u8; 8], [7u8; 8]);
        let mut memory = Memory::new();
        let at = memory.map(Slice::write("a", &mut a)).unwrap();
        let of = memory.map(Slice::read("b", &b)).unwrap();
        assert_eq!(memory.load::<8>(of).unwrap(), [7; 8]);
        let outside = |offset, bytes, write| {
            Box::new(FaultKind::OutOfBounds { buffer: "a".into(), offset, bytes, size: 8, write })
        };
        assert_eq!(memory.load::<1>(at - 1).unwrap_err(), outside(-1, 1, false));
        assert_eq!(memory.store(at + 5, [0; 4]).unwrap_err(), outside(5, 4, true));
        let read_only = FaultKind::ReadOnly { buffer: "b".into(), offset: 2, bytes: 2 };
        assert_eq!(*memory.store(of + 2, [0; 2]).unwrap_err(), read_only);
        assert!(matches!(*memory.load::<1>(0).unwrap_err(), FaultKind::Unmapped { address: 0, .. }));
        assert!(matches!(*memory.load::<8>(u64::MAX - 3).unwrap_err(), FaultKind::Unmapped { .. }));
        assert_eq!(memory.store(at + 4, [1, 2]), Ok(()));
        assert_eq!(a, [0, 0, 0, 0, 1, 2, 0, 0]);
    }

    #[test]
    fn the_stack_ends_at_the_red_zone() {
        let mut bytes = vec![0u8; 4096];
        let mut memory = Memory::new();
        let end = memory.map_stack(Slice::write("stack", &mut bytes)).unwrap();
        memory.set_stack_pointer(end - 8);
        assert_eq!(memory.store(end - 136, [1; 8]), Ok(()));
        assert_eq!(memory.lowest_stack_write(), 4096 - 136);
        assert_eq!(*memory.store(end - 137, [1; 8]).unwrap_err(), FaultKind::RedZone { below: 129, write: true });
    }
}
