//! Distributes work over threads; results are in the order of the items, so they are the same for any number of
//! threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maps each item by `of`, on as many threads as there are CPUs.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, of(item)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_default());
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    // Items taken by a thread that panicked are computed again here, so that this thread fails in the same way.
    let mut done = done.into_iter().peekable();
    let each = items.iter().enumerate().map(|(at, item)| {
        done.next_if(|(of, _)| *of == at).map_or_else(|| of(item), |(_, result)| result)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_none_is_missing() {
        let items: Vec<usize> = (0..1000).collect();
        assert_eq!(
            map(&items, |item| item * 3),
            (0..1000).map(|item| item * 3).collect::<Vec<_>>()
        );
        assert!(map(&[], |item: &usize| *item).is_empty());
    }

    #[test]
    fn items_of_a_thread_that_panicked_are_computed_by_the_caller() {
        let (caller, items) = (std::thread::current().id(), (0..64).collect::<Vec<u32>>());
        let helps = AtomicUsize::new(0);
        let of = |item: &u32| {
            if std::thread::current().id() != caller {
                helps.fetch_add(1, Ordering::Relaxed);
                panic!("a helper fails");
            }
            // Leaves an item to a helper, if there is one.
            let is_waiting = || helps.load(Ordering::Relaxed) == 0;
            (0..1_000).take_while(|_| is_waiting()).for_each(|_| std::thread::yield_now());
            item + 1
        };
        assert_eq!(map(&items, of), (1..65).collect::<Vec<u32>>());
    }
}
