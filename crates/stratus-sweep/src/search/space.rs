//! The space that a search draws cells from: a dimension for each swept key, or group of zipped keys.

use stratus_random::Stream;

use super::range::NumberRange;

/// The values that a dimension takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Domain {
    /// A list: the values of the dimension's keys for each choice.
    Choices(Vec<Vec<String>>),
    /// The numbers of a range, of one key.
    Range(NumberRange),
}

/// Keys that change together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dimension {
    /// The indices of the keys.
    pub(crate) axes: Vec<usize>,
    pub(crate) domain: Domain,
}

impl Dimension {
    /// The end of the dimension's positions, which begin at 0: the number of choices, or 1 for a range.
    pub(crate) fn extent(&self) -> f64 {
        match &self.domain {
            Domain::Choices(choices) => choices.len() as f64,
            Domain::Range(_) => 1.0,
        }
    }

    /// The number of values; `None` if they are not counted.
    pub(crate) fn count(&self) -> Option<usize> {
        match &self.domain {
            Domain::Choices(choices) => Some(choices.len()),
            Domain::Range(range) => range.count(),
        }
    }

    /// Puts the values of the dimension's keys at a position into `values`.
    fn write_values(&self, position: f64, values: &mut [String]) {
        match &self.domain {
            Domain::Choices(choices) => {
                let choice = &choices[(position as usize).min(choices.len() - 1)];
                for (&axis, value) in self.axes.iter().zip(choice) {
                    values[axis].clone_from(value);
                }
            }
            Domain::Range(range) => values[self.axes[0]] = range.value_at(position),
        }
    }

    /// The position of a cell's values; `None` if the dimension does not have them.
    fn position_of(&self, values: &[String]) -> Option<f64> {
        match &self.domain {
            Domain::Choices(choices) => {
                let is_chosen = |choice: &Vec<String>| {
                    self.axes.iter().zip(choice).all(|(&axis, value)| values[axis] == *value)
                };
                // The middle of a choice's positions, so that rounding changes nothing.
                choices.iter().position(is_chosen).map(|at| at as f64 + 0.5)
            }
            Domain::Range(range) => range.position_of(&values[self.axes[0]]),
        }
    }
}

/// The dimensions of a search.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Space {
    pub(crate) dimensions: Vec<Dimension>,
}

impl Space {
    /// The values of every key at a point: a position for each dimension.
    pub(crate) fn values_at(&self, point: &[f64]) -> Vec<String> {
        let keys = self.dimensions.iter().map(|dimension| dimension.axes.len()).sum();
        let mut values = vec![String::new(); keys];
        for (dimension, &position) in self.dimensions.iter().zip(point) {
            dimension.write_values(position, &mut values);
        }
        values
    }

    /// The point of a cell's values; `None` if they are not in the space.
    pub(crate) fn point_of(&self, values: &[String]) -> Option<Vec<f64>> {
        self.dimensions.iter().map(|dimension| dimension.position_of(values)).collect()
    }

    /// The number of different cells; `None` if a range has uncounted values.
    pub(crate) fn count(&self) -> Option<usize> {
        self.dimensions
            .iter()
            .try_fold(1_usize, |all, dimension| Some(all.saturating_mul(dimension.count()?)))
    }

    /// The corners of the space that differ from `point` in one dimension.
    pub(crate) fn corners(&self, point: &[f64]) -> Vec<Vec<f64>> {
        let mut corners = Vec::new();
        for (at, dimension) in self.dimensions.iter().enumerate() {
            let positions = match &dimension.domain {
                Domain::Choices(choices) => (0..choices.len()).map(|choice| choice as f64).collect(),
                Domain::Range(_) => vec![0.0, 1.0 - f64::EPSILON],
            };
            for position in positions {
                let mut corner = point.to_vec();
                corner[at] = position;
                corners.push(corner);
            }
        }
        corners
    }

    /// A uniform point.
    pub(crate) fn random_point(&self, stream: &mut Stream) -> Vec<f64> {
        self.dimensions.iter().map(|dimension| unit(stream) * dimension.extent()).collect()
    }
}

/// A uniform number in [0, 1), with 53 bits.
pub(crate) fn unit(stream: &mut Stream) -> f64 {
    (stream.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}
