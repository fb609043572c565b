//! Parallel work on many kernels. A model has dozens of kernels, which are compiled independently.
//!
//! ```
//! let squares = ixc_codegen::parallel::map(&[1, 2, 3], |n| n * n);
//! assert_eq!(squares, [1, 4, 9]);
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of threads. More threads would wait for memory.
const THREADS: usize = 8;

/// Applies `make` to each item and returns the results in the items' order. It uses one thread per
/// processor, at most eight.
///
/// # Panics
/// If `make` panics.
pub fn map<T: Sync, R: Send>(items: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return made };
            made.push((number, make(item)));
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut made = std::thread::scope(|scope| {
        let others = (1..processors.min(THREADS).min(items.len()))
            .map(|_| std::thread::Builder::new().spawn_scoped(scope, work));
        // If a thread cannot be started, the other threads process its items.
        let others: Vec<_> = others.filter_map(Result::ok).collect();
        let mut made = work();
        for other in others {
            made.extend(other.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload)));
        }
        made
    });
    made.sort_unstable_by_key(|(number, _)| *number);
    made.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn parallel_map_preserves_item_order() {
        let items: Vec<u64> = (0..1000).collect();
        assert_eq!(super::map(&items, |n| n * 3), items.iter().map(|n| n * 3).collect::<Vec<_>>());
        assert!(super::map(&[] as &[u64], |n| *n).is_empty());
    }

    #[test]
    fn parallel_map_propagates_panics() {
        let caught = std::panic::catch_unwind(|| super::map(&[1, 2, 3, 4], |&n| assert!(n < 4, "four")));
        assert!(caught.is_err());
    }
}
