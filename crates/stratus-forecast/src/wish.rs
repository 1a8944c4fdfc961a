//! What is wished of a machine, and which of several fulfils it.

use crate::error::{Error, Result};
use crate::text::seconds;
use std::str::FromStr;

/// What matters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Wish {
    /// The shortest time.
    #[default]
    Fastest,
    /// The lowest price.
    Cheapest,
    /// The lowest price of those that are done within so many seconds; where none has a price, the first of
    /// them in the list.
    Deadline(f64),
    /// The shortest time of those that cost at most so much.
    Budget(f64),
}

/// What a machine offers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Seconds in all; the upper end of the interval.
    pub seconds: f64,
    /// The price of that, where known.
    pub price: Option<f64>,
}

impl FromStr for Wish {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let problem = |problem: &str| Error::Wish { text: text.to_owned(), problem: problem.to_owned() };
        let positive = |number: &str| {
            number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
        };
        match text.split_once('=') {
            None if text == "fastest" => Ok(Self::Fastest),
            None if text == "cheapest" => Ok(Self::Cheapest),
            Some(("deadline", time)) => {
                let wrong = || problem("a deadline is more than nothing, with a unit: s, m, h or d");
                Ok(Self::Deadline(seconds(time).ok_or_else(wrong)?))
            }
            Some(("budget", price)) => {
                let price = positive(price).ok_or_else(|| problem("a budget is a number above 0"))?;
                Ok(Self::Budget(price))
            }
            _ => Err(problem("there is no such wish")),
        }
    }
}

impl Wish {
    /// The position of the best offer; `None` where none fulfils the wish.
    #[must_use]
    pub fn best(self, offers: &[Option<Offer>]) -> Option<usize> {
        let rank = |offer: &Offer| -> Option<[f64; 2]> {
            match self {
                Self::Fastest => Some([offer.seconds, offer.price.unwrap_or(0.0)]),
                Self::Cheapest => offer.price.map(|price| [price, offer.seconds]),
                Self::Deadline(most) if offer.seconds <= most => {
                    Some([offer.price.unwrap_or(f64::INFINITY), 0.0])
                }
                Self::Budget(most) if offer.price.is_some_and(|price| price <= most) => {
                    Some([offer.seconds, 0.0])
                }
                Self::Deadline(_) | Self::Budget(_) => None,
            }
        };
        let ranked = offers.iter().enumerate().filter_map(|(at, offer)| Some((at, rank(offer.as_ref()?)?)));
        let order = |a: &[f64; 2], b: &[f64; 2]| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1]));
        ranked.min_by(|(_, a), (_, b)| order(a, b)).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read() {
        let read = |text: &str| text.parse::<Wish>();
        assert_eq!(read("fastest"), Ok(Wish::Fastest));
        assert_eq!(read("deadline=1.5h"), Ok(Wish::Deadline(5400.0)));
        assert_eq!(read("budget=20"), Ok(Wish::Budget(20.0)));
        let wrong =
            ["", "soon", "deadline=6", "deadline=-1h", "deadline=h", "budget=-3", "budget=nan", "budget=0"];
        for wrong in wrong {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_best_offer_is_found() {
        let offer = |seconds, price| Some(Offer { seconds, price });
        let offers = [None, offer(10.0, Some(5.0)), offer(30.0, Some(1.0)), offer(5.0, None)];
        assert_eq!(Wish::Fastest.best(&offers), Some(3));
        assert_eq!(Wish::Cheapest.best(&offers), Some(2));
        assert_eq!(Wish::Deadline(20.0).best(&offers), Some(1));
        assert_eq!(Wish::Budget(6.0).best(&offers), Some(1));
        assert_eq!(Wish::Budget(0.5).best(&offers), None);
        assert_eq!(Wish::Deadline(1.0).best(&offers), None);
    }
}
