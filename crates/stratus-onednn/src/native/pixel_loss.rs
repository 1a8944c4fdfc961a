//! Softmax cross-entropy of every pixel, with predictions, metrics and gradient.
//!
//! ```text
//! m = max z      e = exp(z - m)
//! loss = w(y) (log Σ e + m - z[y])      dz = w(y) (e / Σ e - onehot(y)) / Σ w
//! ```
//!
//! Pixels are processed in blocks of [`BLOCK`]: their logits are copied class by class, so that each step is
//! a loop over pixels, for every layout of the map and number of classes. Threads divide blocks. With
//! smoothing ε, `w(y)` becomes `(1 - ε) w(y)` and the mean of all classes' weighted losses is added.

use super::activation::exponential;
use super::elementwise::CpuContext;
use super::label_counts::divisor;
use super::rows::MapGeometry;
use super::simd::{Element, multiversion};
use super::threads::{MAX_THREADS, split, split_lengths};
use stratus_engine::backend::Tile;

/// The number of pixels of a block.
pub(super) const BLOCK: usize = 64;

/// One number per pixel of a block.
type Pixels = [f32; BLOCK];

/// A per-pixel softmax cross-entropy loss.
#[derive(Clone, Copy, Debug)]
pub struct PixelLoss {
    /// The geometry of logits and their gradient: a class is a channel.
    pub geometry: MapGeometry,
    /// True if the map has one channel, the logit of class 1; that of class 0 is 0.
    pub binary: bool,
    /// The factor of the loss and its gradient.
    pub factor: f32,
    /// True if the loss is added to that of the metrics, which are those of the main loss.
    pub is_auxiliary: bool,
    /// ε: the share of the target spread evenly over all classes.
    pub smoothing: f32,
}

impl PixelLoss {
    /// The number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        if self.binary { 2 } else { self.geometry.channels }
    }

    /// The position of the map's first channel in a block of logits.
    #[inline(always)]
    fn first_channel(&self) -> usize {
        if self.binary { BLOCK } else { 0 }
    }
}

/// The operands of the step.
pub struct PixelOperands<'a, A, E> {
    /// The map of logits.
    pub logits: &'a [A],
    /// A class per pixel; negative ones are ignored.
    pub labels: &'a [i32],
    /// A weight per class; empty: 1 each.
    pub weights: &'a [f32],
    /// The labels of the whole batch by class, if this is a part of it.
    pub label_counts: Option<&'a [f64]>,
    /// See [`stratus_engine::ops::PIXEL_METRICS_FIELDS`].
    pub metrics: &'a mut [f64],
    /// Predicted classes; may be empty.
    pub predictions: &'a mut [i32],
    /// The gradient of the logits; may be empty.
    pub gradient: &'a mut [E],
    /// [`scratch_elements`] numbers.
    pub scratch: &'a mut [f32],
}

/// The elements of scratch: the class weights, and a block of logits per thread.
#[must_use]
pub fn scratch_elements(classes: usize, threads: usize) -> usize {
    classes + threads * classes * BLOCK
}

/// The sums of a thread.
#[derive(Clone, Copy, Default)]
struct Sums {
    loss: f64,
    weight: f64,
    counted: u64,
    correct: u64,
    /// The first pixel whose label is out of range.
    first_invalid: Option<usize>,
}

/// The memory of the gradient; each thread writes the pixels of its blocks.
struct SharedMap<E>(*mut E);

// SAFETY: threads write different pixels; `E` is plain data that may be sent.
unsafe impl<E: Send> Sync for SharedMap<E> {}

/// The values shared by all blocks.
struct LossContext<'a, A, E> {
    loss: PixelLoss,
    classes: usize,
    /// The pixels of a sample.
    pixels: usize,
    logits: &'a [A],
    labels: &'a [i32],
    weights: &'a [f32],
    /// The sum of the weights.
    all_weights: f32,
    /// The factor of the gradient of a pixel's weighted loss.
    factor: f32,
    gradient: Option<SharedMap<E>>,
}

/// See [`stratus_engine::ops::PixelCrossEntropy`]. An auxiliary loss is multiplied by its weight and added to
/// that of `metrics`.
///
/// # Errors
/// If a label is out of range; names the pixel.
pub fn pixel_cross_entropy<A: Element, E: Element>(
    cpu: &CpuContext,
    loss: PixelLoss,
    tile: Tile,
    operands: PixelOperands<'_, A, E>,
) -> Result<(), String> {
    let PixelOperands { logits, labels, weights, label_counts, metrics, predictions, gradient, scratch } =
        operands;
    let MapGeometry { height, row_pixels: row, .. } = loss.geometry;
    let classes = loss.classes();
    let (threads, pixels) = (cpu.team.threads(), height * row);
    let (ones, buffers) = scratch.split_at_mut(classes);
    ones.fill(1.0);
    let weights = if weights.is_empty() { &*ones } else { weights };
    let counts = count(cpu, labels, weights);
    if let Some(pixel) = counts.first_invalid {
        let (sample, at) = (pixel / pixels, pixel % pixels);
        return Err(format!(
            "sample {sample}, pixel ({}, {}): label {} is out of range for {classes} classes",
            at / row,
            at % row,
            labels[pixel]
        ));
    }
    let divisor = label_counts.map_or(counts.weight, |counts| divisor(counts, Some(weights)));
    let factor = if divisor > 0.0 { f64::from(loss.factor) / divisor } else { 0.0 };
    let gradient = (!gradient.is_empty()).then(|| {
        assert!(
            gradient.len() >= loss.geometry.planes * loss.geometry.plane_elements(),
            "gradient too small"
        );
        SharedMap(gradient.as_mut_ptr())
    });
    let all_weights = weights.iter().sum();
    let factor_f32 = factor as f32;
    let context = LossContext {
        loss,
        classes,
        pixels,
        logits,
        labels,
        weights,
        all_weights,
        factor: factor_f32,
        gradient,
    };
    let per_sample = pixels.div_ceil(BLOCK);
    let blocks = labels.len() / pixels.max(1) * per_sample;
    // Predictions are in row-major order, so that each thread's are contiguous.
    let first_pixel = |block: usize| block / per_sample * pixels + block % per_sample * BLOCK;
    let thread_blocks = |thread: usize| split(blocks, threads, thread);
    let wanted = !predictions.is_empty();
    let mut predicted = split_lengths(
        predictions,
        (0..threads).map(|thread| match wanted {
            true => first_pixel(thread_blocks(thread).end) - first_pixel(thread_blocks(thread).start),
            false => 0,
        }),
    );
    let mut buffers = split_lengths(buffers, (0..threads).map(|_| classes * BLOCK));
    let mut parts: [(Sums, &mut [i32], &mut [f32]); MAX_THREADS] = std::array::from_fn(|thread| {
        (Sums::default(), std::mem::take(&mut predicted[thread]), std::mem::take(&mut buffers[thread]))
    });
    cpu.team.run_parts(&mut parts[..threads], &|thread, (sums, predictions, buffer)| {
        let mut done = 0;
        for block in thread_blocks(thread) {
            let (sample, start) = (block / per_sample, block % per_sample * BLOCK);
            let count = BLOCK.min(pixels - start);
            let predictions = if wanted { &mut predictions[done..done + count] } else { &mut [] };
            one_block(cpu.level, &context, [sample, start, count], buffer, predictions, sums);
            done += count;
        }
    });
    let (mut total, mut correct) = (0.0, 0);
    for (sums, ..) in &parts[..threads] {
        total += sums.loss;
        correct += sums.correct;
    }
    let mean = total * factor;
    match (loss.is_auxiliary, &mut *metrics) {
        (true, [loss, ..]) => *loss += mean,
        _ => {
            if tile.starts_sums() {
                metrics.fill(0.0);
            }
            let numbers = [mean, counts.counted as f64, correct as f64, counts.weight];
            metrics.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
    }
    Ok(())
}

/// Counts the labels and sums their weights.
fn count(cpu: &CpuContext, labels: &[i32], weights: &[f32]) -> Sums {
    let threads = cpu.team.threads();
    let mut parts = [Sums::default(); MAX_THREADS];
    cpu.team.run_parts(&mut parts[..threads], &|thread, sums| {
        let range = split(labels.len(), threads, thread);
        for (pixel, &label) in range.clone().zip(&labels[range]) {
            let Ok(class) = usize::try_from(label) else { continue };
            let Some(&weight) = weights.get(class) else {
                sums.first_invalid = Some(pixel);
                break;
            };
            sums.weight += f64::from(weight);
            sums.counted += 1;
        }
    });
    let mut total = Sums::default();
    for sums in &parts[..threads] {
        total.weight += sums.weight;
        total.counted += sums.counted;
        total.first_invalid = total.first_invalid.or(sums.first_invalid);
    }
    total
}

multiversion! {
    fn one_block / one_block_body [A: Element, E: Element] [A, E] (
        context: &LossContext<'_, A, E>,
        pixels: [usize; 3],
        buffer: &mut [f32],
        predictions: &mut [i32],
        sums: &mut Sums,
    )
}

/// `pixels` holds the sample, its first pixel, and the number of pixels.
#[inline(always)]
fn one_block_body<A: Element, E: Element>(
    context: &LossContext<'_, A, E>,
    pixels: [usize; 3],
    buffer: &mut [f32],
    predictions: &mut [i32],
    sums: &mut Sums,
) {
    let [sample, start, count] = pixels;
    let (classes, smoothing) = (context.classes, context.loss.smoothing);
    let first = context.loss.first_channel();
    buffer[..first].fill(0.0);
    load(context, pixels, &mut buffer[first..]);
    let (mut largest, mut best) = ([f32::NEG_INFINITY; BLOCK], [0_i32; BLOCK]);
    for (class, row) in buffer.chunks_exact(BLOCK).enumerate() {
        for pixel in 0..BLOCK {
            let is_larger = row[pixel] > largest[pixel];
            best[pixel] = if is_larger { class as i32 } else { best[pixel] };
            largest[pixel] = if is_larger { row[pixel] } else { largest[pixel] };
        }
    }
    predictions.copy_from_slice(&best[..predictions.len()]);
    let labels = &context.labels[sample * context.pixels + start..][..count];
    // Per pixel: the weight and logit of its class, and 1 unless it is ignored.
    let (mut weight, mut logit, mut counts) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
    for (pixel, &label) in labels.iter().enumerate() {
        let Ok(class) = usize::try_from(label) else { continue };
        weight[pixel] = context.weights[class] * (1.0 - smoothing);
        logit[pixel] = buffer[class * BLOCK + pixel];
        counts[pixel] = 1.0;
        sums.correct += u64::from(best[pixel] == label && !logit[pixel].is_nan());
    }
    let base_share = smoothing / classes as f32;
    // Σₖ w(k) z[k], for smoothed labels.
    let mut weighted: Pixels = [0.0; BLOCK];
    if base_share > 0.0 {
        for (row, &class_weight) in
            buffer.chunks_exact(BLOCK).zip(context.weights).filter(|(_, class_weight)| **class_weight != 0.0)
        {
            (0..BLOCK).for_each(|pixel| weighted[pixel] += class_weight * (row[pixel] - largest[pixel]));
        }
    }
    let mut sum: Pixels = [0.0; BLOCK];
    for row in buffer.chunks_exact_mut(BLOCK) {
        for pixel in 0..BLOCK {
            row[pixel] = exp(row[pixel] - largest[pixel]);
            sum[pixel] += row[pixel];
        }
    }
    let mut losses: Pixels = [0.0; BLOCK];
    for pixel in 0..BLOCK {
        let log = ln(sum[pixel]);
        let own = weight[pixel] * (log + (largest[pixel] - logit[pixel]));
        // 0 · ∞ counts as 0.
        let own = if weight[pixel] == 0.0 { 0.0 } else { own };
        let all = base_share * (context.all_weights * log - weighted[pixel]);
        let all = if base_share == 0.0 { 0.0 } else { all };
        losses[pixel] = if counts[pixel] == 0.0 { 0.0 } else { own + all };
    }
    sums.loss += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
    if context.gradient.is_none() {
        return;
    }
    let mut scale: Pixels = [0.0; BLOCK];
    for pixel in 0..BLOCK {
        let slope = context.factor * (weight[pixel] + base_share * context.all_weights);
        scale[pixel] = slope / sum[pixel];
        // The factor is 0 if all labels have weight 0.
        counts[pixel] = if context.factor == 0.0 { 0.0 } else { counts[pixel] };
    }
    for (row, &class_weight) in buffer.chunks_exact_mut(BLOCK).zip(context.weights) {
        let smoothing_term = context.factor * base_share * class_weight;
        for pixel in 0..BLOCK {
            let slope = row[pixel] * scale[pixel] - smoothing_term;
            row[pixel] = if counts[pixel] == 0.0 { 0.0 } else { slope };
        }
    }
    for (pixel, &label) in labels.iter().enumerate() {
        if let Ok(class) = usize::try_from(label) {
            buffer[class * BLOCK + pixel] -= context.factor * weight[pixel];
        }
    }
    store(context, pixels, &buffer[first..]);
}

/// Copies a block's logits to `[channel][pixel]`. Elements after the last pixel are not written.
#[inline(always)]
fn load<A: Element, E>(
    context: &LossContext<'_, A, E>,
    [sample, start, count]: [usize; 3],
    buffer: &mut [f32],
) {
    let MapGeometry { pixel_channels: width, groups, .. } = context.loss.geometry;
    for (group, rows) in buffer.chunks_mut(width * BLOCK).enumerate() {
        let first = ((sample * groups + group) * context.pixels + start) * width;
        let map = &context.logits[first..first + count * width];
        for (pixel, logits) in map.chunks_exact(width).enumerate() {
            for (row, logit) in rows.chunks_exact_mut(BLOCK).zip(logits) {
                row[pixel] = logit.load();
            }
        }
    }
}

/// Copies a block's gradient to the map, and zeroes its padding.
#[inline(always)]
fn store<A, E: Element>(context: &LossContext<'_, A, E>, [sample, start, count]: [usize; 3], buffer: &[f32]) {
    let Some(SharedMap(gradient)) = &context.gradient else { return };
    let MapGeometry { pixel_channels: width, groups, .. } = context.loss.geometry;
    for (group, rows) in buffer.chunks(width * BLOCK).enumerate() {
        let first = ((sample * groups + group) * context.pixels + start) * width;
        // SAFETY: the map has `planes * plane_elements` elements, as was checked, and these are the block's
        // pixels in one of its planes; no other thread has the block.
        let map = unsafe { std::slice::from_raw_parts_mut(gradient.add(first), count * width) };
        for (pixel, map) in map.chunks_exact_mut(width).enumerate() {
            let values = rows.chunks_exact(BLOCK).map(|row| row[pixel]).chain(std::iter::repeat(0.0));
            map.iter_mut().zip(values).for_each(|(to, value)| *to = E::store(value));
        }
    }
}

/// `exp(y)` for `y <= 0`; 0 below the smallest normal number. NaN is propagated.
#[inline(always)]
pub(super) fn exp(y: f32) -> f32 {
    const MIN_EXP_ARGUMENT: f32 = -87.0;
    let e = exponential(if y < MIN_EXP_ARGUMENT { MIN_EXP_ARGUMENT } else { y });
    if y < MIN_EXP_ARGUMENT { 0.0 } else { e }
}

/// `ln(x)` for a normal number `x >= 1`, error below 3e-7 of `max(1, ln x)`; NaN is propagated.
///
/// With `x = 2ⁿ m`, `m` from √½ to √2, and `t = (m - 1) / (m + 1)`:
/// `ln x = n ln 2 + 2 (t + t³/3 + t⁵/5 + t⁷/7 + t⁹/9 + …)`.
#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    // Moves the boundary between exponents from 1 to √½.
    const SQRT_HALF_BITS: u32 = 0x3f35_04f3;
    let shifted = x.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let n = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff).wrapping_add(SQRT_HALF_BITS));
    let t = (m - 1.0) / (m + 1.0);
    let square = t * t;
    let mut series = 1.0 / 9.0;
    for coefficient in [1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        series = square.mul_add(series, coefficient);
    }
    let value = n.mul_add(std::f32::consts::LN_2, 2.0 * t * series);
    if x.is_nan() { x } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::IsaLevel;
    use crate::native::threads::ThreadTeam;

    #[test]
    fn the_logarithm_is_accurate() {
        for step in 0..200_000 {
            let x = 1.0 + step as f32 * 0.037;
            let exact = f64::from(x).ln();
            assert!((f64::from(ln(x)) - exact).abs() < 3e-7 * exact.max(1.0), "{x}: {} {exact}", ln(x));
        }
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(f32::NAN).is_nan());
    }

    /// Metrics, predictions, gradient.
    type Outcome = ([f64; 4], Vec<i32>, Vec<f32>);

    /// Three classes, channels last.
    fn loss(logits: &[f32], labels: &[i32]) -> Result<Outcome, String> {
        let pixels = labels.len();
        let geometry = MapGeometry {
            planes: 1,
            height: 1,
            row_pixels: pixels,
            pixel_channels: 3,
            groups: 1,
            channels: 3,
        };
        let loss = PixelLoss { geometry, binary: false, factor: 1.0, is_auxiliary: false, smoothing: 0.0 };
        let (mut metrics, mut predictions) = ([f64::NAN; 4], vec![7; pixels]);
        let (mut gradient, mut scratch) = (vec![f32::NAN; 3 * pixels], vec![0.0; scratch_elements(3, 2)]);
        let operands = PixelOperands {
            logits,
            labels,
            weights: &[1.0, 0.0, 2.0],
            label_counts: None,
            metrics: &mut metrics,
            predictions: &mut predictions,
            gradient: &mut gradient,
            scratch: &mut scratch,
        };
        let cpu = CpuContext { team: ThreadTeam::emulating(2), level: IsaLevel::detect([true, true]) };
        pixel_cross_entropy(&cpu, loss, Tile::WHOLE, operands)?;
        Ok((metrics, predictions, gradient))
    }

    #[test]
    fn an_out_of_range_label_is_an_error_that_names_the_pixel() {
        let error = loss(&[0.0; 9], &[2, 3, 0]).unwrap_err();
        assert_eq!(error, "sample 0, pixel (0, 1): label 3 is out of range for 3 classes");
    }

    #[test]
    fn the_loss_of_labels_of_zero_weight_is_zero() {
        let (metrics, predictions, gradient) =
            loss(&[f32::NAN, 1.0, 3.0, 2.0, 1.0, 0.0, 5.0, 5.0, 9.0], &[-1, i32::MIN, 1]).unwrap();
        assert_eq!(metrics, [0.0, 1.0, 0.0, 0.0]);
        assert_eq!(predictions, [2, 0, 2]);
        assert_eq!(gradient, [0.0; 9]);
    }

    #[test]
    fn nan_is_never_predicted_and_propagates_to_the_loss() {
        let (metrics, predictions, _) =
            loss(&[f32::NAN, 1.0, 1.0, f32::NAN, f32::NAN, f32::NAN], &[0, 0]).unwrap();
        assert!(metrics[0].is_nan());
        assert_eq!(metrics[1..], [2.0, 0.0, 2.0]);
        assert_eq!(predictions, [1, 0]);
    }

    #[test]
    fn a_class_of_zero_weight_has_no_effect_even_with_an_infinite_logit() {
        let (metrics, _, gradient) = loss(&[0.0, f32::NEG_INFINITY, 0.0, 0.0, 0.0, 0.0], &[1, 2]).unwrap();
        assert!((metrics[0] - 3.0_f64.ln()).abs() < 1e-6, "{metrics:?}");
        assert_eq!(gradient[..3], [0.0; 3]);
    }
}
