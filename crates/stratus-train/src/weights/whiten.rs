//! Initial weights that whiten the images: the principal components of their patches, scaled to equal
//! variance, each with both signs.

use crate::TrainError;
use crate::input::{BatchFormat, InputPipeline};
use std::sync::Arc;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::{Dataset, Element, Layout, Loader, LoaderConfig, Order};
use stratus_graph::Parameter;

/// Maximum number of products that are summed for the covariance, which limits the number of patches.
const MAX_PRODUCTS: u64 = 1_000_000_000;

/// Images per batch.
const IMAGES_PER_BATCH: usize = 64;

/// Added to the variance of each component, in units of the normalised images. Without it, components of
/// almost no variance, such as fine colour patterns that compression has removed, would become amplified
/// noise (K. Jordan's value, 2024).
const EPSILON: f64 = 5e-4;

/// Maximum number of sweeps of the Jacobi method; it converges quadratically, in practice after 6 to 10.
const MAX_SWEEPS: usize = 50;

/// The initial values of `weight`, `[out, in, kernel height, kernel width]`: the components by decreasing
/// variance, then their negatives.
///
/// The patches are from the training images in the order of the first epoch, resized and not augmented.
///
/// # Errors
/// If the images cannot be read.
pub(crate) fn filters(
    weight: &Parameter,
    input: &InputPipeline,
    dataset: &Arc<dyn Dataset>,
) -> Result<Vec<f32>, TrainError> {
    let kernel = [weight.shape[2], weight.shape[3]];
    let mut patches = Patches::new(input.shape, kernel);
    let size = patches.size() as u64;
    let max_patches = (MAX_PRODUCTS / (size * size)).max(64 * size);
    let format = BatchFormat { element: Element::F32, layout: Layout::Nchw };
    let config = LoaderConfig {
        order: Order::Shuffled,
        epochs: Some(1),
        ..input.evaluation(format, IMAGES_PER_BATCH.min(dataset.len()))
    };
    let mut loader = Loader::new(Arc::clone(dataset), config)?;
    let labels = loader.label_len();
    while patches.count < max_patches
        && let Some(batch) = loader.next()?
    {
        let images: &[f32] = bytemuck::cast_slice(&batch.images);
        let images = images.chunks_exact(input.shape.iter().product());
        let readable = |labels: &[i32]| labels.iter().any(|&label| label != IGNORED_LABEL);
        for (image, labels) in images.zip(batch.labels.chunks_exact(labels)).take(batch.samples) {
            // The row of a skipped sample is all zeros.
            if readable(labels) {
                patches.add(image);
            }
        }
        loader.recycle(batch);
    }
    Ok(patches.filters())
}

/// Sums over patches, for their covariance.
struct Patches {
    /// Channels, height, width of an image.
    shape: [usize; 3],
    kernel: [usize; 2],
    /// The sum of each value of a patch, `[channel, row, column]`.
    sums: Vec<f64>,
    /// The sums of products of two values, the upper triangle of a square matrix.
    products: Vec<f64>,
    count: u64,
    patch: Vec<f64>,
}

impl Patches {
    fn new(shape: [usize; 3], kernel: [usize; 2]) -> Self {
        let size = shape[0] * kernel[0] * kernel[1];
        Self {
            shape,
            kernel,
            sums: vec![0.0; size],
            products: vec![0.0; size * size],
            count: 0,
            patch: vec![0.0; size],
        }
    }

    fn size(&self) -> usize {
        self.sums.len()
    }

    /// Adds every patch of an image.
    fn add(&mut self, image: &[f32]) {
        let Self { shape: [channels, height, width], kernel: [rows, columns], sums, products, count, patch } =
            self;
        let (height, width, rows, columns) = (*height, *width, *rows, *columns);
        for top in 0..(height + 1).saturating_sub(rows) {
            for left in 0..(width + 1).saturating_sub(columns) {
                let places = (0..*channels).flat_map(|channel| {
                    (0..rows).flat_map(move |row| {
                        let first = (channel * height + top + row) * width + left;
                        first..first + columns
                    })
                });
                patch.iter_mut().zip(places).for_each(|(value, place)| *value = f64::from(image[place]));
                for (row, &value) in patch.iter().enumerate() {
                    sums[row] += value;
                    let products = &mut products[row * patch.len()..][row..patch.len()];
                    products.iter_mut().zip(&patch[row..]).for_each(|(sum, other)| *sum += value * other);
                }
                *count += 1;
            }
        }
    }

    fn filters(&self) -> Vec<f32> {
        let size = self.size();
        let count = self.count.max(1) as f64;
        let mut covariance = vec![0.0; size * size];
        for row in 0..size {
            for column in row..size {
                let mean = self.sums[row] / count * (self.sums[column] / count);
                let value = self.products[row * size + column] / count - mean;
                covariance[row * size + column] = value;
                covariance[column * size + row] = value;
            }
        }
        let components = components(covariance, size);
        let scaled = |sign: f64| {
            components.iter().flat_map(move |(variance, component)| {
                let scale = sign / (variance.max(0.0) + EPSILON).sqrt();
                component.iter().map(move |value| (scale * value) as f32)
            })
        };
        scaled(1.0).chain(scaled(-1.0)).collect()
    }
}

/// Eigenvalues and unit eigenvectors of a symmetric matrix, largest eigenvalue first. The element of largest
/// magnitude of each vector is positive. The cyclic Jacobi method (Golub, Van Loan: "Matrix computations",
/// section 8.5).
fn components(mut matrix: Vec<f64>, size: usize) -> Vec<(f64, Vec<f64>)> {
    let mut vectors = vec![0.0; size * size];
    (0..size).for_each(|i| vectors[i * size + i] = 1.0);
    let norm: f64 = matrix.iter().map(|value| value * value).sum();
    for _ in 0..MAX_SWEEPS {
        let outside: f64 =
            (0..size * size).filter(|i| i / size != i % size).map(|i| matrix[i] * matrix[i]).sum();
        if outside <= 1e-28 * norm {
            break;
        }
        for p in 0..size {
            for q in p + 1..size {
                let off = matrix[p * size + q];
                if off == 0.0 {
                    continue;
                }
                // The rotation by at most 45 degrees that makes element (p, q) zero.
                let tau = (matrix[q * size + q] - matrix[p * size + p]) / (2.0 * off);
                let tangent = tau.signum() / (tau.abs() + tau.hypot(1.0));
                let cosine = 1.0 / tangent.hypot(1.0);
                let sine = tangent * cosine;
                for k in 0..size {
                    let (a, b) = (matrix[k * size + p], matrix[k * size + q]);
                    matrix[k * size + p] = cosine * a - sine * b;
                    matrix[k * size + q] = sine * a + cosine * b;
                }
                for k in 0..size {
                    let (a, b) = (matrix[p * size + k], matrix[q * size + k]);
                    matrix[p * size + k] = cosine * a - sine * b;
                    matrix[q * size + k] = sine * a + cosine * b;
                    // Eigenvectors as rows.
                    let (a, b) = (vectors[p * size + k], vectors[q * size + k]);
                    vectors[p * size + k] = cosine * a - sine * b;
                    vectors[q * size + k] = sine * a + cosine * b;
                }
            }
        }
    }
    let mut components: Vec<(f64, Vec<f64>)> = (0..size)
        .map(|i| {
            let vector = &vectors[i * size..][..size];
            let largest = vector
                .iter()
                .fold(0.0_f64, |best, value| if value.abs() > best.abs() { *value } else { best });
            (matrix[i * size + i], vector.iter().map(|value| value * largest.signum()).collect())
        })
        .collect();
    components.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    components
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_random::{Purpose, Stream};

    fn random(count: usize) -> Vec<f64> {
        let mut stream = Stream::new(3, Purpose::Initialise, 0, 0);
        (0..count).map(|_| f64::from(stream.normal())).collect()
    }

    #[test]
    fn components_are_eigenvectors() {
        for size in [1, 2, 12, 27] {
            let random = random(size * size);
            let mut matrix = vec![0.0; size * size];
            for i in 0..size * size {
                matrix[i] = random[i] + random[i % size * size + i / size];
            }
            let components = components(matrix.clone(), size);
            assert!(components.is_sorted_by(|(a, _), (b, _)| a >= b));
            for (number, (value, vector)) in components.iter().enumerate() {
                for row in 0..size {
                    let product: f64 = (0..size).map(|k| matrix[row * size + k] * vector[k]).sum();
                    assert!((product - value * vector[row]).abs() < 1e-11, "{size}, {number}, {row}");
                }
                for (other, (_, second)) in components.iter().enumerate() {
                    let product: f64 = vector.iter().zip(second).map(|(a, b)| a * b).sum();
                    assert!((product - f64::from(u8::from(number == other))).abs() < 1e-12);
                }
            }
        }
    }

    /// The responses of the filters to their own patches have variance 1 and no covariance.
    #[test]
    fn filters_whiten() {
        let shape = [2, 9, 7];
        let kernel = [2, 3];
        let mut patches = Patches::new(shape, kernel);
        let images: Vec<Vec<f32>> = random(40 * 126)
            .chunks_exact(126)
            .map(|noise| {
                // Neighbours are correlated, and the mean is not zero.
                (0..126).map(|i| (0.3 + noise[i] + 0.8 * noise[i.saturating_sub(1)]) as f32).collect()
            })
            .collect();
        images.iter().for_each(|image| patches.add(image));
        assert_eq!(patches.count, 40 * 8 * 5);
        let filters = patches.filters();
        assert_eq!(filters.len(), 24 * 12);
        let (first, second) = filters.split_at(12 * 12);
        assert!(first.iter().zip(second).all(|(a, b)| *a == -*b));
        let mut responses = vec![Vec::new(); 12];
        for image in &images {
            for (top, left) in (0..8).flat_map(|top| (0..5).map(move |left| (top, left))) {
                for (filter, responses) in first.chunks_exact(12).zip(&mut responses) {
                    let value: f64 = (0..12)
                        .map(|k| {
                            let (channel, row, column) = (k / 6, k / 3 % 2, k % 3);
                            let pixel = image[(channel * 9 + top + row) * 7 + left + column];
                            f64::from(filter[k]) * f64::from(pixel)
                        })
                        .sum();
                    responses.push(value);
                }
            }
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        for (i, a) in responses.iter().enumerate() {
            for (j, b) in responses.iter().enumerate() {
                let (mean_a, mean_b) = (mean(a), mean(b));
                let products: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).collect();
                let expected = f64::from(u8::from(i == j));
                // Slightly below 1, since epsilon is added to the variance.
                assert!((mean(&products) - expected).abs() < 0.01, "{i}, {j}: {}", mean(&products));
            }
        }
    }

    #[test]
    fn constant_images_have_finite_filters() {
        let mut patches = Patches::new([1, 4, 4], [2, 2]);
        patches.add(&[0.5; 16]);
        assert!(patches.filters().iter().all(|value| value.is_finite()));
        assert!(Patches::new([1, 1, 1], [2, 2]).filters().iter().all(|value| value.is_finite()));
    }
}
