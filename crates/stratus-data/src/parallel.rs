//! Parallel loops over the samples of a data set.

use std::convert::Infallible;
use std::num::NonZero;
use std::thread;

/// Calls `each` with every index below `len`, on `threads` threads. Each thread has its own state; the states
/// are returned. The assignment of indices to states is unspecified.
///
/// # Errors
///
/// The error of the lowest failing index.
pub(crate) fn for_each_parallel<S: Default + Send, E: Send>(
    len: usize,
    threads: usize,
    each: impl Fn(&mut S, usize) -> Result<(), E> + Sync,
) -> Result<Vec<S>, E> {
    let threads = threads.clamp(1, len.max(1));
    let work = |first: usize| {
        let mut state = S::default();
        for index in (first..len).step_by(threads) {
            each(&mut state, index).map_err(|error| (index, error))?;
        }
        Ok(state)
    };
    let outcomes: Vec<Result<S, (usize, E)>> = thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|first| scope.spawn(move || work(first))).collect();
        let first = work(0);
        // A panic is propagated.
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        std::iter::once(first).chain(workers.into_iter().map(join)).collect()
    });
    let mut states = Vec::new();
    let mut earliest: Option<(usize, E)> = None;
    for outcome in outcomes {
        match outcome {
            Ok(state) => states.push(state),
            Err((index, error)) => {
                if earliest.as_ref().is_none_or(|(before, _)| index < *before) {
                    earliest = Some((index, error));
                }
            }
        }
    }
    match earliest {
        Some((_, error)) => Err(error),
        None => Ok(states),
    }
}

/// Checks every index below `len`, on all cores, and returns the problems with their indices, in order.
pub(crate) fn collect_problems<S: Default + Send>(
    len: usize,
    check: impl Fn(&mut S, usize) -> Result<(), String> + Sync,
) -> Vec<(u32, String)> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let Ok(found) =
        for_each_parallel(len, threads, |(state, problems): &mut (S, Vec<(u32, String)>), index| {
            problems.extend(check(state, index).err().map(|problem| (index as u32, problem)));
            Ok::<_, Infallible>(())
        });
    let mut problems: Vec<_> = found.into_iter().flat_map(|(_, problems)| problems).collect();
    problems.sort_unstable_by_key(|(index, _)| *index);
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_every_index_once_and_returns_the_earliest_failure() {
        for threads in [0, 1, 3, 8, 100] {
            let states = for_each_parallel(20, threads, |seen: &mut Vec<usize>, index| {
                seen.push(index);
                Ok::<_, ()>(())
            });
            let mut seen: Vec<usize> = states.unwrap().into_iter().flatten().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..20).collect::<Vec<_>>());
            let failed = for_each_parallel(
                20,
                threads,
                |_: &mut (), index| if index < 7 { Ok(()) } else { Err(index) },
            );
            assert_eq!(failed.unwrap_err(), 7);
            assert_eq!(for_each_parallel(0, threads, |_: &mut (), index| Err(index)).unwrap(), [()]);
        }
    }
}
