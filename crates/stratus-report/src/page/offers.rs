//! Time against price: a point a machine, with the interval of its time.

use super::svg::{Anchor, LogAxis, Svg, short};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 470.0;
const STYLE: &str = include_str!("assets/chart.css");

/// What a machine offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// Hours: least, most probable, most.
    pub hours: [f64; 3],
    /// The price of the most probable.
    pub price: f64,
    /// Whether it is the one to take.
    pub best: bool,
}

/// Offers as an SVG file; prices are in `currency`.
#[must_use]
pub fn offers_svg(offers: &[Offer], currency: &str) -> String {
    offers_chart(offers, currency).standalone("Time against price", STYLE)
}

fn offers_chart(offers: &[Offer], currency: &str) -> Svg {
    let (left, right, top, bottom) = (70.0, 20.0, 20.0, 50.0);
    let x = LogAxis::over(offers.iter().map(|offer| offer.price), left, WIDTH - right);
    let y = LogAxis::over(offers.iter().flat_map(|offer| offer.hours), HEIGHT - bottom, top);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    for tick in x.ticks() {
        svg.line("grid", &[[x.at(tick), top], [x.at(tick), HEIGHT - bottom]]);
        svg.text("tick", [x.at(tick), HEIGHT - bottom + 18.0], Anchor::Middle, &short(tick));
    }
    for tick in y.ticks() {
        svg.line("grid", &[[left, y.at(tick)], [WIDTH - right, y.at(tick)]]);
        svg.text("tick", [left - 8.0, y.at(tick) + 4.0], Anchor::End, &short(tick));
    }
    svg.text("label", [(left + WIDTH) / 2.0, HEIGHT - 10.0], Anchor::Middle, &format!("price, {currency}"));
    svg.text("label", [left + 6.0, top + 12.0], Anchor::Start, "hours");
    for offer in offers {
        let [low, hours, high] = offer.hours;
        let at = x.at(offer.price);
        svg.line("turn", &[[at, y.at(low)], [at, y.at(high)]]);
        let title = format!(
            "{}: {hours:.1} hours ({low:.1} to {high:.1}), {:.2} {currency}",
            offer.name, offer.price
        );
        let (class, radius) = if offer.best { ("point update", 8.0) } else { ("point forward", 5.0) };
        svg.circle(class, [at, y.at(hours)], radius, &title);
        // Names stand on the side that has room.
        let (anchor, beside) = if at > WIDTH * 0.75 { (Anchor::End, -10.0) } else { (Anchor::Start, 10.0) };
        svg.text("tick", [at + beside, y.at(hours) + 4.0], anchor, &offer.name);
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::{Offer, offers_svg};

    #[test]
    fn names_are_escaped_and_every_offer_is_drawn() {
        let offer =
            |name: &str, best| Offer { name: name.to_owned(), hours: [1.0, 2.0, 4.0], price: 3.0, best };
        let svg = offers_svg(&[offer("a<b", false), offer("c", true)], "USD");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a&lt;b: 2.0 hours (1.0 to 4.0), 3.00 USD") && !svg.contains("a<b"));
        assert!(!svg.contains("NaN") && offers_svg(&[], "USD").contains("</svg>"));
    }
}
