//! Parallel loops over the samples of a data set.

use std::convert::Infallible;
use std::num::NonZero;
use std::thread;

/// Calls `each` with every index below `len`, on `threads` threads. Each thread has its own state; the states
/// are returned. Which index went to which state is unspecified.
///
/// # Errors
///
/// The error of the lowest failing index.
pub(crate) fn share_out<S: Default + Send, E: Send>(
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
        let own = work(0);
        // A panic is propagated.
        let join = |worker: thread::ScopedJoinHandle<'_, _>| {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        std::iter::once(own).chain(workers.into_iter().map(join)).collect()
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

/// Checks every index below `len`, on all cores, and returns those with a problem, in order.
pub(crate) fn problems<S: Default + Send>(
    len: usize,
    look: impl Fn(&mut S, usize) -> Result<(), String> + Sync,
) -> Vec<(u32, String)> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let Ok(found) = share_out(len, threads, |(state, problems): &mut (S, Vec<(u32, String)>), index| {
        problems.extend(look(state, index).err().map(|problem| (index as u32, problem)));
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
    fn every_index_is_met_once_and_the_earliest_failure_is_told() {
        for threads in [0, 1, 3, 8, 100] {
            let states = share_out(20, threads, |seen: &mut Vec<usize>, index| {
                seen.push(index);
                Ok::<_, ()>(())
            });
            let mut seen: Vec<usize> = states.unwrap().into_iter().flatten().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..20).collect::<Vec<_>>());
            let failed =
                share_out(20, threads, |_: &mut (), index| if index < 7 { Ok(()) } else { Err(index) });
            assert_eq!(failed.unwrap_err(), 7);
            assert_eq!(share_out(0, threads, |_: &mut (), index| Err(index)).unwrap(), [()]);
        }
    }
}
