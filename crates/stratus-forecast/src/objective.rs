//! The objective by which a machine is chosen.

use crate::error::{Error, Result};
use std::cmp::Ordering;
use std::str::FromStr;
use stratus_base::text::seconds;

/// The times that are acceptable for the best value, as a multiple of the shortest.
pub const VALUE_TIME_FACTOR: f64 = 2.0;

/// The objective of the choice. Times and prices are upper ends of intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Objective {
    /// The lowest price among those that take at most [`VALUE_TIME_FACTOR`] times as long as the fastest of
    /// the candidates with a price, of those whose devices are all used if there are any; without any price,
    /// the shortest time.
    #[default]
    Value,
    /// The shortest time.
    Fastest,
    /// The lowest price.
    Cheapest,
    /// The lowest price within a number of seconds; without any price, the shortest time.
    Deadline(f64),
    /// The shortest time within a price.
    Budget(f64),
}

/// The time and price of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Total seconds: expected, and the upper end of the interval.
    pub seconds: [f64; 2],
    /// The prices of these seconds, if known.
    pub price: Option<[f64; 2]>,
    /// True if devices are charged that are not used.
    pub has_idle_devices: bool,
}

/// Candidates in the order of an objective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranking {
    /// Positions of the candidates: first those that meet the objective, best first; then the others, nearest
    /// first.
    pub order: Vec<usize>,
    /// The number of candidates that meet the objective.
    pub met: usize,
    /// Positions of those that are expected to meet a deadline or budget, but might not.
    pub near: Vec<usize>,
    /// The position of the fastest candidate with a price, of those whose devices are all used if there are
    /// any.
    pub fastest_priced: Option<usize>,
}

impl Ranking {
    /// The position of the best candidate; `None` if none meets the objective.
    #[must_use]
    pub fn best(&self) -> Option<usize> {
        self.order.first().copied().filter(|_| self.met > 0)
    }
}

impl FromStr for Objective {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let problem = |problem: &str| Error::Objective { text: text.to_owned(), problem: problem.to_owned() };
        let positive = |number: &str| {
            number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
        };
        match text.split_once('=') {
            None if text == "value" => Ok(Self::Value),
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
    /// Ranks candidates; those that are `None` are left out.
    #[must_use]
    pub fn rank(self, candidates: &[Option<Candidate>]) -> Ranking {
        let known = || candidates.iter().enumerate().filter_map(|(at, found)| Some((at, (*found)?)));
        let priced = || known().filter(|(_, candidate)| candidate.price.is_some());
        let objective = match self {
            Self::Value if priced().next().is_none() => Self::Fastest,
            other => other,
        };
        let fastest = priced().min_by(|(_, a), (_, b)| {
            a.has_idle_devices.cmp(&b.has_idle_devices).then(a.seconds[1].total_cmp(&b.seconds[1]))
        });
        let shortest = fastest.map_or(f64::INFINITY, |(_, candidate)| candidate.seconds[1]);
        let meets = |candidate: &Candidate, end: usize| match objective {
            Self::Value => {
                candidate.price.is_some() && candidate.seconds[end] <= VALUE_TIME_FACTOR * shortest
            }
            Self::Fastest => true,
            Self::Cheapest => candidate.price.is_some(),
            Self::Deadline(max) => candidate.seconds[end] <= max,
            Self::Budget(max) => candidate.price.is_some_and(|price| price[end] <= max),
        };
        let by_time = |a: &Candidate, b: &Candidate| a.seconds[1].total_cmp(&b.seconds[1]);
        let upper_price = |candidate: &Candidate| candidate.price.map_or(f64::INFINITY, |price| price[1]);
        let by_price = |a: &Candidate, b: &Candidate| upper_price(a).total_cmp(&upper_price(b));
        let order = |a: &Candidate, b: &Candidate| -> Ordering {
            let by_objective = match objective {
                Self::Value | Self::Cheapest | Self::Deadline(_) => by_price(a, b).then(by_time(a, b)),
                Self::Fastest | Self::Budget(_) => by_time(a, b).then(by_price(a, b)),
            };
            // Those that miss the objective begin with the nearest.
            let nearest = match objective {
                Self::Budget(_) => by_price(a, b).then(by_time(a, b)),
                _ => by_time(a, b).then(by_price(a, b)),
            };
            let (a_meets, b_meets) = (meets(a, 1), meets(b, 1));
            b_meets.cmp(&a_meets).then(if a_meets { by_objective } else { nearest })
        };
        let mut ranked: Vec<(usize, Candidate)> = known().collect();
        ranked.sort_by(|(_, a), (_, b)| order(a, b));
        let met = ranked.iter().filter(|(_, candidate)| meets(candidate, 1)).count();
        let has_limit = matches!(objective, Self::Deadline(_) | Self::Budget(_));
        let near = ranked[met..].iter().filter(|(_, candidate)| has_limit && meets(candidate, 0));
        Ranking {
            near: near.map(|(at, _)| *at).collect(),
            order: ranked.iter().map(|(at, _)| *at).collect(),
            met,
            fastest_priced: fastest.map(|(at, _)| at),
        }
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
        let candidate = |seconds: f64, price: Option<f64>| {
            let upper = price.map(|price| [0.5 * price, price]);
            Some(Candidate { seconds: [0.5 * seconds, seconds], price: upper, has_idle_devices: false })
        };
        let candidates = [None, candidate(10.0, Some(5.0)), candidate(30.0, Some(1.0)), candidate(5.0, None)];
        let best = |objective: Objective| objective.rank(&candidates).best();
        assert_eq!(best(Objective::Fastest), Some(3));
        assert_eq!(best(Objective::Cheapest), Some(2));
        assert_eq!(best(Objective::Deadline(20.0)), Some(1));
        assert_eq!(best(Objective::Budget(6.0)), Some(1));
        assert_eq!(best(Objective::Budget(0.5)), None);
        assert_eq!(best(Objective::Deadline(1.0)), None);
        // Three times as slow as the fastest with a price is too slow, the same time twice is not.
        assert_eq!(best(Objective::Value), Some(1));
        let slower = [candidates[1], candidate(20.0, Some(1.0)), candidate(20.1, Some(0.5))];
        assert_eq!(
            Objective::Value.rank(&slower),
            Ranking { order: vec![1, 0, 2], met: 2, near: vec![], fastest_priced: Some(0) }
        );
        assert_eq!(Objective::Value.rank(&[candidate(3.0, None), candidate(2.0, None)]).best(), Some(1));
    }

    #[test]
    fn machines_that_are_charged_for_idle_devices_set_no_pace() {
        let of = |seconds: f64, price: f64, has_idle_devices: bool| {
            Some(Candidate { seconds: [seconds; 2], price: Some([price; 2]), has_idle_devices })
        };
        // Eight GPUs, of which one is used, are 2.5 times as fast for ten times the price.
        let candidates = [of(4.0, 100.0, true), of(10.0, 10.0, false), of(19.0, 9.0, false)];
        let ranking = Objective::Value.rank(&candidates);
        assert_eq!((ranking.best(), ranking.fastest_priced), (Some(2), Some(1)));
        assert_eq!(Objective::Fastest.rank(&candidates).best(), Some(0));
        let all_idle = [of(4.0, 100.0, true), of(10.0, 10.0, true)];
        assert_eq!(Objective::Value.rank(&all_idle).best(), Some(0));
    }

    #[test]
    fn near_misses_follow_those_that_meet_the_limit() {
        let of = |seconds: [f64; 2], price: f64| {
            Some(Candidate { seconds, price: Some([price, 2.0 * price]), has_idle_devices: false })
        };
        let candidates =
            [of([9.0, 11.0], 1.0), of([5.0, 8.0], 3.0), of([20.0, 30.0], 0.1), of([2.0, 3.0], 4.0)];
        let ranking = Objective::Deadline(10.0).rank(&candidates);
        assert_eq!(
            ranking,
            Ranking { order: vec![1, 3, 0, 2], met: 2, near: vec![0], fastest_priced: Some(3) }
        );
        let ranking = Objective::Budget(1.0).rank(&candidates);
        assert_eq!(
            ranking,
            Ranking { order: vec![2, 0, 1, 3], met: 1, near: vec![0], fastest_priced: Some(3) }
        );
    }
}
