//! The objective by which a machine is chosen.

use crate::error::{Error, Result};
use std::str::FromStr;
use stratus_base::text::seconds;

/// The objective of the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Objective {
    /// The shortest time.
    #[default]
    Fastest,
    /// The lowest price.
    Cheapest,
    /// The lowest price within a number of seconds; without any price, the first such candidate.
    Deadline(f64),
    /// The shortest time within a price.
    Budget(f64),
}

/// The time and price of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Total seconds, the upper end of the interval.
    pub seconds: f64,
    /// The price of these seconds, if known.
    pub price: Option<f64>,
}

impl FromStr for Objective {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let problem = |problem: &str| Error::Objective { text: text.to_owned(), problem: problem.to_owned() };
        let positive = |number: &str| {
            number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
        };
        match text.split_once('=') {
            None if text == "fastest" => Ok(Self::Fastest),
            None if text == "cheapest" => Ok(Self::Cheapest),
            Some(("deadline", time)) => {
                let invalid = || problem("the deadline must be above 0, with a unit: s, m, h or d");
                Ok(Self::Deadline(seconds(time).ok_or_else(invalid)?))
            }
            Some(("budget", price)) => {
                let price = positive(price).ok_or_else(|| problem("the budget must be a number above 0"))?;
                Ok(Self::Budget(price))
            }
            _ => Err(problem("unknown objective")),
        }
    }
}

impl Objective {
    /// The position of the best candidate; `None` if none meets the objective.
    #[must_use]
    pub fn best(self, candidates: &[Option<Candidate>]) -> Option<usize> {
        let rank = |candidate: &Candidate| -> Option<[f64; 2]> {
            match self {
                Self::Fastest => Some([candidate.seconds, candidate.price.unwrap_or(0.0)]),
                Self::Cheapest => candidate.price.map(|price| [price, candidate.seconds]),
                Self::Deadline(max) if candidate.seconds <= max => {
                    Some([candidate.price.unwrap_or(f64::INFINITY), 0.0])
                }
                Self::Budget(max) if candidate.price.is_some_and(|price| price <= max) => {
                    Some([candidate.seconds, 0.0])
                }
                Self::Deadline(_) | Self::Budget(_) => None,
            }
        };
        let ranked = candidates
            .iter()
            .enumerate()
            .filter_map(|(at, candidate)| Some((at, rank(candidate.as_ref()?)?)));
        let order = |a: &[f64; 2], b: &[f64; 2]| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1]));
        ranked.min_by(|(_, a), (_, b)| order(a, b)).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_objectives() {
        let read = |text: &str| text.parse::<Objective>();
        assert_eq!(read("fastest"), Ok(Objective::Fastest));
        assert_eq!(read("deadline=1.5h"), Ok(Objective::Deadline(5400.0)));
        assert_eq!(read("budget=20"), Ok(Objective::Budget(20.0)));
        let wrong =
            ["", "soon", "deadline=6", "deadline=-1h", "deadline=h", "budget=-3", "budget=nan", "budget=0"];
        for wrong in wrong {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn finds_the_best_candidate() {
        let candidate = |seconds, price| Some(Candidate { seconds, price });
        let candidates = [None, candidate(10.0, Some(5.0)), candidate(30.0, Some(1.0)), candidate(5.0, None)];
        assert_eq!(Objective::Fastest.best(&candidates), Some(3));
        assert_eq!(Objective::Cheapest.best(&candidates), Some(2));
        assert_eq!(Objective::Deadline(20.0).best(&candidates), Some(1));
        assert_eq!(Objective::Budget(6.0).best(&candidates), Some(1));
        assert_eq!(Objective::Budget(0.5).best(&candidates), None);
        assert_eq!(Objective::Deadline(1.0).best(&candidates), None);
    }
}
