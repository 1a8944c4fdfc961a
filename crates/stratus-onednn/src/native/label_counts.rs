//! Counts labels by class, and computes the divisor of a loss from the counts.

use super::threads::{MAX_THREADS, ThreadTeam, split, split_lengths};

/// Below this number of labels, waking the team costs more than it saves.
const MIN_PARALLEL_LABELS: usize = 1 << 14;

/// The number of counters that [`count_labels`] needs as scratch: a row of classes per thread.
#[must_use]
pub fn scratch_counts(classes: usize, threads: usize) -> usize {
    classes * threads
}

/// Counts the labels of each class; a label has `stride` numbers, starting with its class. Negative and
/// out-of-range labels are not counted. See [`stratus_engine::ops::CountLabels`].
pub fn count_labels(
    team: &ThreadTeam,
    labels: &[i32],
    stride: usize,
    counts: &mut [f64],
    scratch: &mut [u64],
) {
    in_threads(team, labels.len() / stride, 1, counts, scratch, |samples, row| {
        for label in labels[samples.start * stride..samples.end * stride].iter().step_by(stride) {
            let count = usize::try_from(*label).ok().and_then(|class| row.get_mut(class));
            count.into_iter().for_each(|count| *count += 1);
        }
    });
}

/// Counts the targets `[N, counts]` of each column that are present, which means not NaN. See
/// [`stratus_engine::ops::CountLabels`].
pub fn count_targets(team: &ThreadTeam, targets: &[f32], counts: &mut [f64], scratch: &mut [u64]) {
    let columns = counts.len().max(1);
    in_threads(team, targets.len() / columns, columns, counts, scratch, |samples, row| {
        for targets in targets[samples.start * columns..samples.end * columns].chunks_exact(columns) {
            for (count, target) in row.iter_mut().zip(targets) {
                *count += u64::from(!target.is_nan());
            }
        }
    });
}

/// Adds up the counts of all threads, which `count` adds to a row of counters for a range of samples.
fn in_threads(
    team: &ThreadTeam,
    samples: usize,
    labels_each: usize,
    counts: &mut [f64],
    scratch: &mut [u64],
    count: impl Fn(std::ops::Range<usize>, &mut [u64]) + Sync,
) {
    let classes = counts.len();
    let threads = if samples * labels_each < MIN_PARALLEL_LABELS { 1 } else { team.threads() };
    let mut parts = split_lengths(scratch, (0..threads).map(|_| classes));
    let task = |thread: usize, row: &mut &mut [u64]| {
        row.fill(0);
        count(split(samples, threads, thread), row);
    };
    match threads {
        1 => team.run_serially(&mut parts[..1], &task),
        _ => team.run_parts(&mut parts[..threads], &task),
    }
    for (class, count) in counts.iter_mut().enumerate() {
        *count = parts[..threads.min(MAX_THREADS)].iter().map(|row| row[class]).sum::<u64>() as f64;
    }
}

/// The divisor of a partial loss: the number of labels, or the sum of their classes' weights.
#[must_use]
pub fn divisor(label_counts: &[f64], class_weights: Option<&[f32]>) -> f64 {
    match class_weights {
        Some(weights) => {
            label_counts.iter().zip(weights).map(|(count, &weight)| count * f64::from(weight)).sum()
        }
        None => label_counts.iter().sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_do_not_depend_on_the_number_of_threads() {
        let labels: Vec<i32> = (0..40_000).map(|i| i * 7919 % 13 - 2).collect();
        let expected: Vec<f64> =
            (0..9).map(|class| labels.iter().filter(|&&label| label == class).count() as f64).collect();
        for threads in [1, 2, 3] {
            let (mut counts, mut scratch) = (vec![f64::NAN; 9], vec![7; scratch_counts(9, threads)]);
            count_labels(&ThreadTeam::emulating(threads), &labels, 1, &mut counts, &mut scratch);
            assert_eq!(counts, expected);
        }
        let (mut counts, mut scratch) = ([f64::NAN; 3], [7; 3]);
        let mixed = [1, 2, 5, -1, 0, 0, 1, 0, 9, 3, 0, 0];
        count_labels(&ThreadTeam::single(), &mixed, 3, &mut counts, &mut scratch);
        assert_eq!(counts, [0.0, 2.0, 0.0]);
        let targets = [f32::NAN, 1.0, 0.0, 0.5, f32::INFINITY, f32::NAN, -1.0, 7.0, f32::NAN];
        count_targets(&ThreadTeam::single(), &targets, &mut counts, &mut scratch);
        assert_eq!(counts, [2.0, 3.0, 1.0]);
        let many: Vec<f32> = (0..60_000).map(|i| if i % 7 < 3 { f32::NAN } else { i as f32 }).collect();
        let expected: Vec<f64> = (0..4)
            .map(|column| {
                many.iter().skip(column).step_by(4).filter(|target| !target.is_nan()).count() as f64
            })
            .collect();
        for threads in [1, 2, 3] {
            let (mut counts, mut scratch) = (vec![f64::NAN; 4], vec![7; scratch_counts(4, threads)]);
            count_targets(&ThreadTeam::emulating(threads), &many, &mut counts, &mut scratch);
            assert_eq!(counts, expected);
        }
        let counts = [0.0, 2.0, 0.0];
        assert_eq!((divisor(&counts, None), divisor(&counts, Some(&[1.0, 0.25, 3.0]))), (2.0, 0.5));
    }
}
