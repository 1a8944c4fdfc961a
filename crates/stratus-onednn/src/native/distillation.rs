//! The loss by the logits of a teacher, added to the metrics and the gradient of the main loss.
//!
//! ```text
//! a = (z - max z) / T      b = (t - max t) / T      q = exp(a) / Σ exp(a)      p = exp(b) / Σ exp(b)
//! loss = Σ p (b - a) + log Σ exp(a) - log Σ exp(b)                dz += factor · (q - p)
//! ```
//!
//! Pixels are processed in blocks of [`BLOCK`], as in the per-pixel loss: their logits are copied class by
//! class, so that each step is a loop over pixels. A matrix `[N, K]` is a map of `N` pixels. Threads divide
//! blocks.

use super::elementwise::CpuContext;
use super::label_counts::divisor;
use super::pixel_loss::{BLOCK, exp, ln};
use super::rows::MapGeometry;
use super::simd::{Element, multiversion};
use super::threads::{MAX_THREADS, split, split_lengths};

/// A distillation loss. The maps of logits may have different layouts.
#[derive(Clone, Copy, Debug)]
pub struct Distillation {
    /// The weight of the loss.
    pub weight: f32,
    /// The temperature of both softmax functions.
    pub temperature: f32,
    /// The distance between the labels of neighbouring pixels.
    pub label_stride: usize,
    /// The geometry of the logits, of those of the teacher, and of the gradient.
    pub geometries: [MapGeometry; 3],
}

/// The operands of the step.
pub struct DistillationOperands<'a, A, E> {
    /// The map of logits.
    pub logits: &'a [A],
    /// The map of the teacher's logits.
    pub teacher: &'a [A],
    /// A label per pixel; pixels with a negative one are ignored.
    pub labels: &'a [i32],
    /// The labels of the whole batch by class, if this is a part of it.
    pub label_counts: Option<&'a [f64]>,
    /// See [`stratus_engine::ops::METRICS_FIELDS`].
    pub metrics: &'a mut [f64],
    /// The gradient of the logits.
    pub gradient: &'a mut [E],
    /// [`scratch_elements`] numbers.
    pub scratch: &'a mut [f32],
}

/// The elements of scratch: two blocks of logits per thread.
#[must_use]
pub fn scratch_elements(classes: usize, threads: usize) -> usize {
    2 * threads * classes * BLOCK
}

/// The geometry of a matrix `[N, K]` as one image of `N` pixels; that of a map stays.
#[must_use]
pub fn as_image(geometry: MapGeometry, is_matrix: bool) -> MapGeometry {
    if !is_matrix {
        return geometry;
    }
    MapGeometry { planes: 1, height: 1, row_pixels: geometry.planes, ..geometry }
}

/// The memory of the gradient; each thread changes the pixels of its blocks.
struct SharedMap<E>(*mut E);

// SAFETY: threads change different pixels; `E` is plain data that may be sent.
unsafe impl<E: Send> Sync for SharedMap<E> {}

/// The values shared by all blocks.
struct BlockContext<'a, A, E> {
    loss: Distillation,
    /// The pixels of a sample.
    pixels: usize,
    logits: &'a [A],
    teacher: &'a [A],
    labels: &'a [i32],
    /// The factor of the difference of the two distributions.
    factor: f32,
    gradient: SharedMap<E>,
}

/// See [`stratus_engine::ops::DistillationLoss`].
pub fn distillation_loss<A: Element, E: Element>(
    cpu: &CpuContext,
    loss: Distillation,
    operands: DistillationOperands<'_, A, E>,
) {
    let DistillationOperands { logits, teacher, labels, label_counts, metrics, gradient, scratch } = operands;
    let [MapGeometry { height, row_pixels, channels: classes, .. }, _, out] = loss.geometries;
    let (threads, pixels) = (cpu.team.threads(), height * row_pixels);
    let counted = || labels.iter().step_by(loss.label_stride).filter(|&&label| label >= 0).count() as f64;
    let divisor = label_counts.map_or_else(counted, |counts| divisor(counts, None));
    if divisor == 0.0 || pixels == 0 {
        return;
    }
    assert!(gradient.len() >= out.planes * out.plane_elements(), "gradient too small");
    let (weight, temperature) = (f64::from(loss.weight), f64::from(loss.temperature));
    let factor = (weight * temperature / divisor) as f32;
    let gradient = SharedMap(gradient.as_mut_ptr());
    let context = BlockContext { loss, pixels, logits, teacher, labels, factor, gradient };
    let per_sample = pixels.div_ceil(BLOCK);
    let blocks = labels.len() / loss.label_stride / pixels * per_sample;
    let mut buffers = split_lengths(scratch, (0..threads).map(|_| 2 * classes * BLOCK));
    let mut parts: [(f64, &mut [f32]); MAX_THREADS] =
        std::array::from_fn(|thread| (0.0, std::mem::take(&mut buffers[thread])));
    cpu.team.run_parts(&mut parts[..threads], &|thread, (sum, buffer)| {
        for block in split(blocks, threads, thread) {
            let (sample, start) = (block / per_sample, block % per_sample * BLOCK);
            let count = BLOCK.min(pixels - start);
            one_block(cpu.level, &context, [sample, start, count], buffer, sum);
        }
    });
    let total: f64 = parts[..threads].iter().map(|(sum, _)| sum).sum();
    if let [loss, ..] = metrics {
        *loss += weight * temperature * temperature * total / divisor;
    }
}

multiversion! {
    fn one_block / one_block_body [A: Element, E: Element] [A, E] (
        context: &BlockContext<'_, A, E>,
        pixels: [usize; 3],
        buffer: &mut [f32],
        sum: &mut f64,
    )
}

/// `pixels` holds the sample, its first pixel, and the number of pixels.
#[inline(always)]
fn one_block_body<A: Element, E: Element>(
    context: &BlockContext<'_, A, E>,
    pixels: [usize; 3],
    buffer: &mut [f32],
    sum: &mut f64,
) {
    let [sample, start, count] = pixels;
    let [student_map, teacher_map, _] = context.loss.geometries;
    let (student, teacher) = buffer.split_at_mut(student_map.channels * BLOCK);
    load(context.logits, student_map, context.pixels, pixels, student);
    load(context.teacher, teacher_map, context.pixels, pixels, teacher);
    let inverse = 1.0 / context.loss.temperature;
    let (largest, teacher_largest) = (largest(student), largest(teacher));
    let (mut sums, mut teacher_sums, mut cross) = ([0.0_f32; BLOCK], [0.0_f32; BLOCK], [0.0_f32; BLOCK]);
    for (row, teacher_row) in student.chunks_exact_mut(BLOCK).zip(teacher.chunks_exact_mut(BLOCK)) {
        for pixel in 0..BLOCK {
            let a = (row[pixel] - largest[pixel]) * inverse;
            let b = (teacher_row[pixel] - teacher_largest[pixel]) * inverse;
            row[pixel] = exp(a);
            teacher_row[pixel] = exp(b);
            sums[pixel] += row[pixel];
            teacher_sums[pixel] += teacher_row[pixel];
            // 0 · ∞ counts as 0.
            cross[pixel] += if teacher_row[pixel] == 0.0 { 0.0 } else { teacher_row[pixel] * (b - a) };
        }
    }
    let labels = context.labels[(sample * context.pixels + start) * context.loss.label_stride..]
        .iter()
        .step_by(context.loss.label_stride)
        .take(count);
    // 1 for each pixel with a label, 0 for all others and past the last pixel.
    let mut is_counted = [0.0_f32; BLOCK];
    for (counted, &label) in is_counted.iter_mut().zip(labels) {
        *counted = if label >= 0 { 1.0 } else { 0.0 };
    }
    for pixel in 0..BLOCK {
        let loss = cross[pixel] / teacher_sums[pixel] + ln(sums[pixel]) - ln(teacher_sums[pixel]);
        *sum += if is_counted[pixel] == 0.0 { 0.0 } else { f64::from(loss) };
        (sums[pixel], teacher_sums[pixel]) =
            (context.factor / sums[pixel], context.factor / teacher_sums[pixel]);
    }
    for (row, teacher_row) in student.chunks_exact_mut(BLOCK).zip(teacher.chunks_exact(BLOCK)) {
        for pixel in 0..BLOCK {
            let slope = row[pixel] * sums[pixel] - teacher_row[pixel] * teacher_sums[pixel];
            row[pixel] = if is_counted[pixel] == 0.0 { 0.0 } else { slope };
        }
    }
    add(context, pixels, student);
}

/// The largest logit of each pixel; NaN is never the largest.
#[inline(always)]
fn largest(logits: &[f32]) -> [f32; BLOCK] {
    let mut largest = [f32::NEG_INFINITY; BLOCK];
    for row in logits.chunks_exact(BLOCK) {
        for pixel in 0..BLOCK {
            largest[pixel] = if row[pixel] > largest[pixel] { row[pixel] } else { largest[pixel] };
        }
    }
    largest
}

/// Copies a block's logits to `[class][pixel]`, with zeros after the last pixel.
#[inline(always)]
fn load<A: Element>(
    map: &[A],
    geometry: MapGeometry,
    map_pixels: usize,
    [sample, start, count]: [usize; 3],
    buffer: &mut [f32],
) {
    if count < BLOCK {
        buffer.fill(0.0);
    }
    let MapGeometry { pixel_channels: width, groups, .. } = geometry;
    for (group, rows) in buffer.chunks_mut(width * BLOCK).enumerate() {
        let first = ((sample * groups + group) * map_pixels + start) * width;
        for (pixel, logits) in map[first..first + count * width].chunks_exact(width).enumerate() {
            for (row, logit) in rows.chunks_exact_mut(BLOCK).zip(logits) {
                row[pixel] = logit.load();
            }
        }
    }
}

/// Adds a block's slopes to the gradient; its padding stays.
#[inline(always)]
fn add<A, E: Element>(context: &BlockContext<'_, A, E>, [sample, start, count]: [usize; 3], slopes: &[f32]) {
    let [.., MapGeometry { pixel_channels: width, groups, .. }] = context.loss.geometries;
    for (group, rows) in slopes.chunks(width * BLOCK).enumerate() {
        let first = ((sample * groups + group) * context.pixels + start) * width;
        // SAFETY: the map has `planes * plane_elements` elements, as was checked, and these are the block's
        // pixels in one of its planes; no other thread has the block.
        let map = unsafe { std::slice::from_raw_parts_mut(context.gradient.0.add(first), count * width) };
        for (pixel, map) in map.chunks_exact_mut(width).enumerate() {
            for (to, row) in map.iter_mut().zip(rows.chunks_exact(BLOCK)) {
                *to = E::store(to.load() + row[pixel]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::IsaLevel;
    use crate::native::threads::ThreadTeam;

    /// `[N, K]` logits with a gradient of 1 before.
    fn run(logits: &[f32], teacher: &[f32], labels: &[i32], classes: usize) -> (f64, Vec<f32>) {
        let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
        let matrix = MapGeometry {
            planes: labels.len(),
            height: 1,
            row_pixels: 1,
            pixel_channels: classes,
            groups: 1,
            channels: classes,
        };
        let loss = Distillation {
            weight: 0.5,
            temperature: 2.0,
            label_stride: 1,
            geometries: [as_image(matrix, true); 3],
        };
        let (mut metrics, mut gradient) = ([3.0, 0.0, 0.0, 0.0], vec![1.0; logits.len()]);
        let mut scratch = vec![f32::NAN; scratch_elements(classes, 1)];
        let operands = DistillationOperands {
            logits,
            teacher,
            labels,
            label_counts: None,
            metrics: &mut metrics,
            gradient: &mut gradient,
            scratch: &mut scratch,
        };
        distillation_loss(&cpu, loss, operands);
        (metrics[0], gradient)
    }

    /// PyTorch: `0.5 * 4 * kl_div(log_softmax(z / 2, 1), log_softmax(t / 2, 1), log_target=True,
    /// reduction="batchmean")`, and its gradient.
    #[test]
    fn the_loss_and_its_gradient_are_those_of_the_formula() {
        let (z, t) = ([1.0_f32, -2.0, 0.5], [0.0_f32, 3.0, -1.0]);
        let softmax = |logits: [f32; 3]| {
            let exponentials = logits.map(|logit| (f64::from(logit) / 2.0).exp());
            let sum: f64 = exponentials.iter().sum();
            exponentials.map(|exponential| exponential / sum)
        };
        let (q, p) = (softmax(z), softmax(t));
        let divergence: f64 = p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum();
        let (loss, gradient) = run(&z, &t, &[1], 3);
        assert!((loss - 3.0 - 0.5 * 4.0 * divergence).abs() < 1e-6, "{loss}");
        for (class, slope) in gradient.iter().enumerate() {
            let expected = 1.0 + 0.5 * 2.0 * (q[class] - p[class]);
            assert!((f64::from(*slope) - expected).abs() < 1e-6, "{slope} is not {expected}");
        }
    }

    #[test]
    fn samples_without_a_label_and_equal_logits_change_nothing() {
        let logits = [1.0, 2.0, 3.0, f32::NAN, 5.0, 6.0];
        let (loss, gradient) = run(&logits, &[1.0, 2.0, 3.0, 0.0, 9.0, -9.0], &[0, -1], 3);
        assert!((loss - 3.0).abs() < 1e-6, "{loss}");
        assert!(gradient[..3].iter().all(|slope| (slope - 1.0).abs() < 1e-6), "{gradient:?}");
        assert_eq!(gradient[3..], [1.0; 3]);
        assert_eq!(run(&logits, &logits, &[-1, -1], 3), (3.0, vec![1.0; 6]));
    }

    #[test]
    fn infinite_logits_of_the_teacher_are_a_class_of_probability_zero() {
        let (loss, gradient) = run(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY], &[0], 2);
        assert!((loss - 3.0 - 2.0 * std::f64::consts::LN_2).abs() < 1e-6, "{loss}");
        assert!((gradient[0] - 0.5).abs() < 1e-6 && (gradient[1] - 1.5).abs() < 1e-6, "{gradient:?}");
    }
}
