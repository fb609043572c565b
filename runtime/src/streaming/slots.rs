//! Memory for blocks, divided into slots of a few sizes.
//!
//! All slots are in one [`Reservation`](super::reservation::Reservation), one size class after the
//! other. Staging memory is last; raw blocks are read into it before they are packed. A slot is
//! free or belongs to one block. It is *primary*, which a step may read, or *shadow*: predicted and
//! not confirmed yet. Promotion changes the role and copies nothing.
//!
//! Invariant: the sum of all slots is at most the budget, and no slot is taken twice.

use super::files::PAGE;

/// Slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of a slot, whole pages.
    pub bytes: u64,
    /// Number of slots.
    pub count: u32,
}

/// Use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Slot without a block.
    Free,
    /// A block that a step may read, or that is being read for a step.
    Primary,
    /// A predicted block.
    Shadow,
}

/// All slots, with their roles and the free ones.
#[derive(Debug)]
pub struct Slots {
    places: Vec<(u64, usize)>,
    roles: Vec<Role>,
    /// Free slots, by class.
    free: Vec<Vec<u32>>,
    classes: Vec<SizeClass>,
}

impl Slots {
    /// Makes free slots of these classes, one after the other from offset 0.
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
            // `take` pops from the end, so low offsets come first: memory that is never needed is
            // never touched.
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

    /// Returns the offset of each slot, by number.
    pub fn offsets(&self) -> Vec<u64> {
        self.places.iter().map(|&(at, _)| at).collect()
    }

    /// Takes a free slot of a class and gives it this role.
    pub fn take(&mut self, class: usize, role: Role) -> Option<u32> {
        let slot = self.free.get_mut(class)?.pop()?;
        debug_assert_eq!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = role;
        Some(slot)
    }

    /// Frees a slot.
    pub fn give(&mut self, slot: u32) {
        debug_assert_ne!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = Role::Free;
        self.free[self.places[slot as usize].1].push(slot);
    }

    /// Makes a shadow slot primary.
    pub fn promote(&mut self, slot: u32) {
        debug_assert_ne!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = Role::Primary;
    }

    /// Returns the number of slots of a class with this role.
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
