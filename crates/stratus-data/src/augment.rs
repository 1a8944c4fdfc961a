//! Augmentation: a function of (seed, epoch, sample), so that it is the same on any thread and after any resume.

use serde::{Deserialize, Serialize};
use stratus_random::{Purpose, Stream};

/// Pad by `pixels` of value 0 on every side, then crop the original size at a random place: a random translation.
///
/// The shift is uniform over `-pixels..=pixels` along both axes. Off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PadShift {
    /// The greatest shift; 0 is off.
    pub pixels: u16,
}

impl PadShift {
    /// The shift of `sample` in `epoch`.
    #[must_use]
    pub fn shift(self, seed: u64, epoch: u32, sample: u32) -> Shift {
        if self.pixels == 0 {
            return Shift::default();
        }
        let mut stream = Stream::new(seed, Purpose::Augment, u64::from(sample), epoch);
        let pixels = i32::from(self.pixels);
        let mut draw = || stream.below(2 * u32::from(self.pixels) + 1) as i32 - pixels;
        Shift { rows: draw(), columns: draw() }
    }
}

/// A translation: output (y, x) is input (y + rows, x + columns), or 0 outside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Rows further down in the input.
    pub rows: i32,
    /// Columns further right in the input.
    pub columns: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_by_default() {
        assert_eq!(PadShift::default().shift(1, 2, 3), Shift::default());
    }

    #[test]
    fn every_shift_is_drawn_equally_often() {
        let augment = PadShift { pixels: 2 };
        let mut counts = [[0u32; 5]; 5];
        for sample in 0..25_000 {
            let shift = augment.shift(7, 3, sample);
            counts[(shift.rows + 2) as usize][(shift.columns + 2) as usize] += 1;
        }
        assert!(counts.iter().flatten().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn shifts_depend_on_seed_epoch_and_sample() {
        let augment = PadShift { pixels: 100 };
        let all = |seed, epoch| (0..8).map(|sample| augment.shift(seed, epoch, sample)).collect::<Vec<_>>();
        assert_eq!(all(1, 2), all(1, 2));
        assert_ne!(all(1, 2), all(2, 2));
        assert_ne!(all(1, 2), all(1, 3));
        assert_ne!(all(1, 2)[0], all(1, 2)[1]);
    }
}
