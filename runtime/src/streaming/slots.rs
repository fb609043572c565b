//! Memory for blocks, divided into slots of a few sizes.
//!
//! All slots lie in one [`Reservation`](super::reservation::Reservation), one size class after the
//! other. Staging memory follows the slots; raw blocks are read into it before they are packed. A
//! slot is free or belongs to one block. A slot is *primary* if a step may read its block, and
//! *shadow* if its block is predicted but not requested yet. Promotion from shadow to primary
//! copies no bytes.
//!
//! Invariant: all slots together have at most as many bytes as the budget, and no slot belongs to
//! two blocks.

use super::files::PAGE;

/// Slots of one size: the size and the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of a slot; these are whole pages.
    pub bytes: u64,
    /// Number of slots.
    pub count: u32,
}

/// Role of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The slot has no block.
    Free,
    /// The slot has a block that a step may read, or that is being read for a step.
    Primary,
    /// The slot has a predicted block.
    Shadow,
}

/// All slots with their roles, and lists of the free slots.
#[derive(Debug)]
pub struct Slots {
    places: Vec<(u64, usize)>,
    roles: Vec<Role>,
    /// For each size class, the numbers of its free slots.
    free: Vec<Vec<u32>>,
    classes: Vec<SizeClass>,
}

impl Slots {
    /// Creates free slots of these size classes. They lie one after the other, from offset 0 on.
    pub fn new(classes: &[SizeClass]) -> Slots {
        let mut slots = Slots { places: Vec::new(), roles: Vec::new(), free: Vec::new(), classes: classes.to_vec() };
        let mut at = 0;
        for (index, class) in classes.iter().enumerate() {
            debug_assert!(class.bytes.is_multiple_of(PAGE));
            let first = slots.places.len() as u32;
            for _ in 0..class.count {
                slots.places.push((at, index));
                slots.roles.push(Role::Free);
                at += class.bytes;
            }
            // `take` takes the last element, so slots with low offsets are used first. Memory that
            // is never needed is never touched.
            slots.free.push((first..first + class.count).rev().collect());
        }
        slots
    }

    /// Returns the number of bytes of the slots of all classes.
    pub fn bytes(classes: &[SizeClass]) -> u64 {
        classes.iter().map(|class| class.bytes * u64::from(class.count)).sum()
    }

    /// Returns the size classes.
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// Returns the offset of each slot in the reservation, indexed by slot number.
    pub fn offsets(&self) -> Vec<u64> {
        self.places.iter().map(|&(at, _)| at).collect()
    }

    /// Takes a free slot of a size class, and gives it a role. Returns `None` if no slot of the
    /// class is free.
    pub fn take(&mut self, class: usize, role: Role) -> Option<u32> {
        let slot = self.free.get_mut(class)?.pop()?;
        debug_assert_eq!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = role;
        Some(slot)
    }

    /// Marks a slot as free.
    pub fn give(&mut self, slot: u32) {
        debug_assert_ne!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = Role::Free;
        self.free[self.places[slot as usize].1].push(slot);
    }

    /// Changes the role of a slot from shadow to primary.
    pub fn promote(&mut self, slot: u32) {
        debug_assert_ne!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = Role::Primary;
    }

    /// Returns the number of slots of a size class that have this role.
    pub fn count(&self, class: usize, role: Role) -> u32 {
        self.places.iter().zip(&self.roles).filter(|((_, of), is)| *of == class && **is == role).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_disjoint_and_reusable() {
        let classes = [SizeClass { bytes: 2 * PAGE, count: 3 }, SizeClass { bytes: PAGE, count: 2 }];
        let mut slots = Slots::new(&classes);
        assert_eq!(slots.offsets(), [0, 2, 4, 6, 7].map(|page| page * PAGE));
        assert_eq!(Slots::bytes(&classes), 8 * PAGE);
        let taken: Vec<u32> = (0..3).map(|_| slots.take(0, Role::Shadow).unwrap()).collect();
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!((slots.take(0, Role::Primary), slots.take(9, Role::Primary)), (None, None));
        slots.promote(1);
        assert_eq!(
            (slots.count(0, Role::Primary), slots.count(0, Role::Shadow), slots.count(1, Role::Free)),
            (1, 2, 2)
        );
        slots.give(1);
        assert_eq!(slots.take(0, Role::Primary), Some(1));
    }
}
