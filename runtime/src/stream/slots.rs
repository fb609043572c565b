//! Memory for blocks, cut into slots of a few sizes.
//!
//! All slots lie in one [`Reservation`](super::reservation::Reservation): those of one size class behind each other, then the next class, and staging memory last,
//! which raw blocks are read into before they are packed. A slot belongs to one block or to none, and is *primary*, which a step
//! may read, or *shadow*: predicted, and not confirmed yet. Promotion changes the role; nothing is copied.
//!
//! Invariant: the sum of all slots is at most the budget, and no slot is handed out twice.

use super::files::PAGE;

/// Slots of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Bytes of a slot, whole pages.
    pub bytes: u64,
    /// How many there are.
    pub count: u32,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    Free,
    /// A block that a step may read, or that is being read for one.
    Primary,
    /// A block that is predicted.
    Shadow,
}

/// All slots: which are free, and what the others are.
#[derive(Debug)]
pub struct Slots {
    places: Vec<(u64, usize)>,
    roles: Vec<Role>,
    /// By class.
    free: Vec<Vec<u32>>,
    classes: Vec<SizeClass>,
}

impl Slots {
    /// Slots of these classes, one behind the other from offset 0 on.
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
            // Taken from the end: low offsets first, so that memory that is never needed is never touched.
            slots.free.push((first..first + class.count).rev().collect());
        }
        slots
    }

    /// Bytes of slots of all classes.
    pub fn bytes(classes: &[SizeClass]) -> u64 {
        classes.iter().map(|class| class.bytes * u64::from(class.count)).sum()
    }

    /// The classes.
    pub fn classes(&self) -> &[SizeClass] {
        &self.classes
    }

    /// Where each slot begins, by number.
    pub fn offsets(&self) -> Vec<u64> {
        self.places.iter().map(|&(at, _)| at).collect()
    }

    /// A free slot of a class, which is in this role from now on.
    pub fn take(&mut self, class: usize, role: Role) -> Option<u32> {
        let slot = self.free.get_mut(class)?.pop()?;
        debug_assert_eq!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = role;
        Some(slot)
    }

    /// Gives a slot back.
    pub fn give(&mut self, slot: u32) {
        debug_assert_ne!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = Role::Free;
        self.free[self.places[slot as usize].1].push(slot);
    }

    /// Makes a shadow slot a primary one.
    pub fn promote(&mut self, slot: u32) {
        debug_assert_ne!(self.roles[slot as usize], Role::Free);
        self.roles[slot as usize] = Role::Primary;
    }

    /// How many slots of a class are in this role.
    pub fn count(&self, class: usize, role: Role) -> u32 {
        self.places.iter().zip(&self.roles).filter(|((_, of), is)| *of == class && **is == role).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_come_back() {
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
