//! The chart of time over price, one point per machine with the interval of its time.

use super::svg::{Anchor, LogAxis, Svg, short};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 470.0;
const STYLE: &str = include_str!("assets/chart.css");

/// A point of the chart.
#[derive(Clone, Debug, PartialEq)]
pub struct MachinePoint {
    /// The name of the machine.
    pub name: String,
    /// Hours: lower end, most probable value, upper end.
    pub hours: [f64; 3],
    /// The price of the most probable hours.
    pub price: f64,
    /// True for the recommended machine.
    pub best: bool,
}

/// Machines as an SVG file; prices are in `currency`.
#[must_use]
pub fn machines_svg(machines: &[MachinePoint], currency: &str) -> String {
    machines_chart(machines, currency).standalone("Time over price", STYLE)
}

fn machines_chart(machines: &[MachinePoint], currency: &str) -> Svg {
    let (left, right, top, bottom) = (70.0, 20.0, 20.0, 50.0);
    let x = LogAxis::over(machines.iter().map(|machine| machine.price), left, WIDTH - right);
    let y = LogAxis::over(machines.iter().flat_map(|machine| machine.hours), HEIGHT - bottom, top);
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
    for machine in machines {
        let [low, hours, high] = machine.hours;
        let at = x.at(machine.price);
        svg.line("turn", &[[at, y.at(low)], [at, y.at(high)]]);
        let title = format!(
            "{}: {hours:.1} hours ({low:.1} to {high:.1}), {:.2} {currency}",
            machine.name, machine.price
        );
        let (class, radius) = if machine.best { ("point update", 8.0) } else { ("point forward", 5.0) };
        svg.circle(class, [at, y.at(hours)], radius, None, &title);
        // Each name is placed on the side with enough space.
        let (anchor, offset) = if at > WIDTH * 0.75 { (Anchor::End, -10.0) } else { (Anchor::Start, 10.0) };
        svg.text("tick", [at + offset, y.at(hours) + 4.0], anchor, &machine.name);
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::{MachinePoint, machines_svg};

    #[test]
    fn draws_every_machine_and_escapes_names() {
        let machine = |name: &str, best| MachinePoint {
            name: name.to_owned(),
            hours: [1.0, 2.0, 4.0],
            price: 3.0,
            best,
        };
        let svg = machines_svg(&[machine("a<b", false), machine("c", true)], "USD");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("a&lt;b: 2.0 hours (1.0 to 4.0), 3.00 USD") && !svg.contains("a<b"));
        assert!(!svg.contains("NaN") && machines_svg(&[], "USD").contains("</svg>"));
    }
}
