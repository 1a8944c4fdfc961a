//! Counter-based random numbers: every draw is a function of (seed, purpose, indices).
//!
//! There is no generator state to save or share: shuffling epoch 7 or augmenting sample 12,345 gives the same
//! numbers on every thread, in any order, resumed or not. The function is Philox4x32-10 (Salmon, Moraes,
//! Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011), which is efficient on CPUs and GPUs.

/// The purpose of a random number. Two purposes never share a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Initial parameter values, indexed by the parameter's position in the graph.
    Initialise = 1,
    /// The order of samples in an epoch, indexed by the epoch.
    Shuffle = 2,
    /// Shifting an image, indexed by epoch and sample.
    Shift = 3,
    /// Dropout masks, indexed by iteration and layer.
    Dropout = 4,
    /// Splitting a data set into training, validation and test splits.
    Split = 5,
    /// Synthetic data, indexed by the sample.
    Synthetic = 6,
    /// Test inputs.
    Test = 7,
    /// Mirroring an image, indexed by epoch and sample.
    Flip = 8,
    /// Cropping and resizing an image, indexed by epoch and sample.
    Crop = 9,
    /// Blanking a rectangle of an image, indexed by epoch and sample.
    Cutout = 10,
    /// The order in which the samples of a data set are packed, indexed by the split.
    Pack = 11,
    /// Rotating and zooming an image, indexed by epoch and sample.
    Affine = 12,
    /// Changing the colours of an image, indexed by epoch and sample.
    Colour = 13,
    /// Mixing an image with another image of its batch, indexed by epoch and sample.
    Mix = 14,
    /// The samples of a data set that are compared when a run is resumed, indexed by the stratum.
    Fingerprint = 15,
    /// The values of a cell of a sweep, indexed by trial and attempt.
    Search = 16,
    /// The random importance of a unit that may be pruned, indexed by channel group and unit.
    Prune = 17,
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Computes a Philox4x32-10 block: four 32-bit words from a 128-bit counter and a 64-bit key.
#[must_use]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut counter, mut key) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let product = [
            u64::from(MULTIPLIERS[0]) * u64::from(counter[0]),
            u64::from(MULTIPLIERS[1]) * u64::from(counter[2]),
        ];
        let (high, low) = (product.map(|p| (p >> 32) as u32), product.map(|p| p as u32));
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]];
    }
    counter
}

/// The sequence of numbers of a (seed, purpose, index, subindex), of up to 2^32 blocks of four words.
///
/// The meaning of `index` and `subindex` depends on the purpose: an epoch, a sample, a parameter's position.
#[derive(Clone, Debug)]
pub struct Stream {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Stream {
    /// Creates the sequence of (seed, purpose, index, subindex), at its first number.
    #[must_use]
    pub fn new(seed: u64, purpose: Purpose, index: u64, subindex: u32) -> Self {
        // A separate block mixes purpose and seed, so that the sequences of neighbouring seeds are unrelated.
        let mixed =
            philox([seed as u32, (seed >> 32) as u32, purpose as u32, subindex], [0x5354_5241, 0x5455_5300]);
        let key = [mixed[0] ^ mixed[2], mixed[1] ^ mixed[3]];
        Self { key, counter: [0, subindex, index as u32, (index >> 32) as u32], block: [0; 4], used: 4 }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox(self.counter, self.key);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    /// The block of four words at a position in the sequence, independent of earlier draws.
    #[must_use]
    #[inline]
    pub fn block(&self, position: u32) -> [u32; 4] {
        philox([position, self.counter[1], self.counter[2], self.counter[3]], self.key)
    }

    /// Like [`Stream::block`] for several positions: word `w` of the block at `positions[l]` is `[w][l]`.
    /// Inlined, so that a caller with vector instructions computes all positions in parallel.
    #[must_use]
    #[inline(always)]
    pub fn blocks<const L: usize>(&self, positions: [u32; L]) -> [[u32; L]; 4] {
        let mut counters = [positions, [self.counter[1]; L], [self.counter[2]; L], [self.counter[3]; L]];
        let mut key = self.key;
        for round in 0..10 {
            if round > 0 {
                key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
            }
            let [a, b, c, d] = counters;
            for l in 0..L {
                let first = u64::from(MULTIPLIERS[0]) * u64::from(a[l]);
                let second = u64::from(MULTIPLIERS[1]) * u64::from(c[l]);
                counters[0][l] = (second >> 32) as u32 ^ b[l] ^ key[0];
                counters[1][l] = second as u32;
                counters[2][l] = (first >> 32) as u32 ^ d[l] ^ key[1];
                counters[3][l] = first as u32;
            }
        }
        counters
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | (u64::from(self.next_u32()) << 32)
    }

    /// A uniform number in [0, 1), with 24 bits.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// A uniform number in [low, high).
    pub fn uniform_between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.uniform()
    }

    /// A uniform integer in 0..bound without bias (Lemire, "Fast random integer generation in an interval",
    /// 2019), or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            let low = product as u32;
            if low >= bound || low >= bound.wrapping_neg().checked_rem(bound).unwrap_or(0) {
                return (product >> 32) as u32;
            }
        }
    }

    /// A uniform number in (0, 1], for logarithms.
    fn positive(&mut self) -> f64 {
        1.0 - f64::from(self.uniform())
    }

    /// A standard normal number, by the Box–Muller transform in `f64`.
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.positive().ln()).sqrt();
        (radius * (std::f64::consts::TAU * f64::from(self.uniform())).cos()) as f32
    }

    /// The logarithm of a number with the gamma distribution of positive `shape` and scale 1 (Marsaglia and
    /// Tsang, "A simple method for generating gamma variables", 2000). For small shapes, most numbers are too
    /// small for an `f64`, so the logarithm is returned.
    fn ln_gamma(&mut self, shape: f64) -> f64 {
        // The method requires a shape of at least 1. A smaller one is the number for `shape + 1` times a
        // power of a uniform number.
        let (shape, ln_factor) =
            if shape < 1.0 { (shape + 1.0, self.positive().ln() / shape) } else { (shape, 0.0) };
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = f64::from(self.normal());
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 {
                let bound = 0.5 * x * x + d * (1.0 - v + v.ln());
                if self.positive().ln() < bound {
                    return d.ln() + v.ln() + ln_factor;
                }
            }
        }
    }

    /// A number with the beta distribution whose parameters are both `shape` (positive). It is symmetric
    /// about ½, uniform if `shape` is 1, and concentrated near 0 and 1 if `shape` is small.
    pub fn beta(&mut self, shape: f64) -> f64 {
        let (a, b) = (self.ln_gamma(shape), self.ln_gamma(shape));
        1.0 / (1.0 + (b - a).exp())
    }

    /// Shuffles `items` uniformly (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u32 + 1) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are from `kat_vectors` in the authors' Random123 distribution.
    #[test]
    fn philox_matches_published_values() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn streams_are_repeatable_and_differ_in_every_coordinate() {
        let draw = |seed, purpose, index, subindex| Stream::new(seed, purpose, index, subindex).next_u64();
        let base = draw(1, Purpose::Shuffle, 2, 3);
        assert_eq!(base, draw(1, Purpose::Shuffle, 2, 3));
        for other in [
            draw(2, Purpose::Shuffle, 2, 3),
            draw(1, Purpose::Shift, 2, 3),
            draw(1, Purpose::Shuffle, 3, 3),
            draw(1, Purpose::Shuffle, 2, 4),
            draw(1 << 40, Purpose::Shuffle, 2, 3),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn blocks_match_the_sequence() {
        let mut stream = Stream::new(5, Purpose::Dropout, 1 << 40, 6);
        let sequence: Vec<[u32; 4]> = (0..20).map(|_| std::array::from_fn(|_| stream.next_u32())).collect();
        let positions: [u32; 20] = std::array::from_fn(|position| position as u32);
        let blocks = stream.blocks(positions);
        for (position, block) in sequence.into_iter().enumerate() {
            assert_eq!(stream.block(position as u32), block);
            assert_eq!(blocks.map(|words| words[position]), block);
        }
        assert_eq!(stream.blocks([u32::MAX]).map(|words| words[0]), stream.block(u32::MAX));
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut stream = Stream::new(7, Purpose::Test, 0, 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[stream.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
        assert_eq!(stream.below(1), 0);
        assert_eq!(stream.below(0), 0);
    }

    #[test]
    fn normal_has_zero_mean_and_unit_variance() {
        let mut stream = Stream::new(7, Purpose::Test, 1, 0);
        let draws: Vec<f64> = (0..100_000).map(|_| f64::from(stream.normal())).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    /// The variance of the symmetric beta distribution is 1 / (8 shape + 4).
    #[test]
    fn beta_has_the_expected_mean_and_variance() {
        for (index, shape) in [0.001, 0.2, 0.5, 1.0, 3.0, 50.0].into_iter().enumerate() {
            let mut stream = Stream::new(7, Purpose::Test, 2, index as u32);
            let draws: Vec<f64> = (0..100_000).map(|_| stream.beta(shape)).collect();
            assert!(draws.iter().all(|x| (0.0..=1.0).contains(x)));
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            let expected = 1.0 / (8.0 * shape + 4.0);
            assert!((mean - 0.5).abs() < 0.006, "{shape}: {mean}");
            assert!((variance / expected - 1.0).abs() < 0.02, "{shape}: {variance}, not {expected}");
        }
    }

    #[test]
    fn beta_of_shape_1_is_uniform() {
        let mut stream = Stream::new(7, Purpose::Test, 3, 0);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[((stream.beta(1.0) * 10.0) as usize).min(9)] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
    }

    #[test]
    fn shuffle_is_a_permutation() {
        let mut items: Vec<u32> = (0..1000).collect();
        Stream::new(3, Purpose::Shuffle, 0, 0).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }
}
