//! SVG drawings: axes, marks and text in a fixed area.

use std::fmt::Write;

use super::escape::escape;
use stratus_base::text::grouped;

/// A drawing of fixed size, in pixels.
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// The alignment of a text relative to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// Adds a rectangle of a class; `title` is its tooltip.
    pub(super) fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4], title: &str) {
        let title =
            if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" \
             height=\"{:.2}\">{title}</rect>",
            width.max(0.0),
            height.max(0.0)
        );
    }

    /// Adds a rectangle of the first colour with an opacity of `share`, from 0 to 1.
    pub(super) fn shaded_rect(&mut self, [x, y, width, height]: [f64; 4], share: f64, title: &str) {
        let title = escape(title);
        let _ = writeln!(
            self.body,
            "<rect class=\"forward\" fill-opacity=\"{:.3}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" \
             height=\"{height:.2}\"><title>{title}</title></rect>",
            share.clamp(0.0, 1.0)
        );
    }

    /// Adds a text that begins at a point and reads upwards.
    pub(super) fn rotated_text(&mut self, [x, y]: [f64; 2], text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.2}\" y=\"{y:.2}\" transform=\"rotate(-90 {x:.2} {y:.2})\">{text}</text>"
        );
    }

    /// Adds a circle of a class. `row` is the row of its layer in the accounting.
    pub(super) fn circle(
        &mut self,
        class: &str,
        [x, y]: [f64; 2],
        radius: f64,
        row: Option<usize>,
        title: &str,
    ) {
        let title = escape(title);
        let row = row.map_or(String::new(), |row| format!(" data-row=\"{row}\""));
        let _ = writeln!(
            self.body,
            "<circle class=\"{class}\"{row} cx=\"{x:.2}\" cy=\"{y:.2}\" \
             r=\"{radius:.2}\"><title>{title}</title></circle>"
        );
    }

    /// Adds a path of a class, given by SVG's path commands.
    pub(super) fn path(&mut self, class: &str, commands: &str, title: &str) {
        let title =
            if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) };
        let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{commands}\">{title}</path>");
    }

    /// Opens the group of a node of a network; with the number of a run and the position of a layer, it is a
    /// link to the layer's row in the table.
    pub(super) fn open_node(&mut self, class: &str, target: Option<(usize, usize)>) {
        let _ = match target {
            Some((run, node)) => {
                writeln!(self.body, "<a class=\"{class}\" href=\"#layer-{run}-{node}\" data-node=\"{node}\">")
            }
            None => writeln!(self.body, "<g class=\"{class}\">"),
        };
    }

    /// Closes the group of a node, which is a link or not.
    pub(super) fn close_node(&mut self, is_link: bool) {
        self.body.push_str(if is_link { "</a>\n" } else { "</g>\n" });
    }

    /// Opens a point that can have the focus; `label` is read aloud.
    pub(super) fn open_point(&mut self, label: &str) {
        let label = escape(label);
        let _ = writeln!(self.body, "<g class=\"mark\" tabindex=\"0\" role=\"img\" aria-label=\"{label}\">");
    }

    /// Closes a point.
    pub(super) fn close_point(&mut self) {
        self.body.push_str("</g>\n");
    }

    /// Adds a line through points.
    pub(super) fn line(&mut self, class: &str, points: &[[f64; 2]]) {
        let points: Vec<String> = points.iter().map(|[x, y]| format!("{x:.2},{y:.2}")).collect();
        let _ = writeln!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// Adds a text at a point.
    pub(super) fn text(&mut self, class: &str, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(
            self.body,
            "<text class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// The drawing as an element of a page, with the style of the page.
    pub(super) fn inline(&self, label: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n{body}</svg>\n",
            escape(label)
        )
    }

    /// The drawing as an element of a page in its own size, whose parts are read aloud one by one.
    pub(super) fn group(&self, label: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"group\" \
             aria-label=\"{}\">\n{body}</svg>\n",
            escape(label)
        )
    }

    /// The drawing as a separate file, with a style that follows the preferred colour scheme.
    pub(super) fn standalone(&self, label: &str, style: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{}\">\n<style>\n{style}</style>\n\
             <rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n{body}</svg>\n",
            escape(label)
        )
    }
}

/// A logarithmic axis.
pub(super) struct LogAxis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl LogAxis {
    /// An axis over `values` from pixel `start` to pixel `end`, widened to whole powers of ten.
    pub(super) fn over(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let logs = values.filter(|value| *value > 0.0 && value.is_finite()).map(f64::log10);
        let (low, high) =
            logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| (low.min(log), high.max(log)));
        let (from, to) = if low > high { (0.0, 1.0) } else { (low.floor(), high.ceil()) };
        Self { from, to: if to > from { to } else { from + 1.0 }, start, end }
    }

    /// The pixel of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let fraction = (value.log10() - self.from) / (self.to - self.from);
        self.start + fraction * (self.end - self.start)
    }

    /// Both ends.
    pub(super) fn ends(&self) -> [f64; 2] {
        [10_f64.powf(self.from), 10_f64.powf(self.to)]
    }

    /// The powers of ten on the axis.
    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let (from, to) = (self.from as i32, self.to as i32);
        (from..=to).map(|power| 10_f64.powi(power))
    }
}

/// A linear axis.
pub(super) struct LinearAxis {
    /// The numbers of the first and of the last tick, in steps.
    ticks: [i64; 2],
    step: f64,
    start: f64,
    end: f64,
}

impl LinearAxis {
    /// The smallest distance of two ticks.
    const MIN_STEP: f64 = 1e-6;

    /// An axis over `values` from pixel `start` to pixel `end`, widened to whole steps. It has up to eleven
    /// ticks, at multiples of 1, 2 or 5.
    pub(super) fn over(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let values = values.filter(|value| value.is_finite());
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let rough = ((high - low) / 8.0).max(high.abs() * 1e-9).max(Self::MIN_STEP);
        let power = 10_f64.powf(rough.log10().floor());
        let factors = [1.0, 2.0, 5.0, 10.0];
        let factor = factors.into_iter().find(|factor| factor * power >= rough).unwrap_or(10.0);
        let step = factor * power;
        let (from, to) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        Self { ticks: [from, to.max(from.saturating_add(1))], step, start, end }
    }

    /// The pixel of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let [from, to] = self.ticks.map(|tick| tick as f64);
        self.start + (value / self.step - from) / (to - from) * (self.end - self.start)
    }

    /// The values of the ticks.
    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> + use<> {
        let step = self.step;
        (self.ticks[0]..=self.ticks[1]).map(move |tick| tick as f64 * step)
    }

    /// The text of a tick, with the decimals of the step.
    pub(super) fn label(&self, tick: f64) -> String {
        // The logarithm of a step such as 0.001 may be a little too small.
        let decimals = (-self.step.log10() - 1e-9).ceil().max(0.0) as usize;
        if decimals == 0 && tick >= 1.0 { short(tick) } else { format!("{tick:.decimals$}") }
    }
}

/// Formats a number of an axis: `0.1`, `20`, `1,000`.
pub(super) fn short(value: f64) -> String {
    if value < 1.0 { format!("{value}") } else { grouped(value.round() as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_have_round_ticks() {
        let labels = |values: &[f64]| {
            let axis = LinearAxis::over(values.iter().copied(), 0.0, 100.0);
            let inside = values
                .iter()
                .filter(|value| value.is_finite())
                .all(|value| (-1e-6..=100.000_001).contains(&axis.at(*value)));
            assert!(inside, "{values:?}");
            axis.ticks().map(|tick| axis.label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(&[0.0, 0.0241]), ["0.000", "0.005", "0.010", "0.015", "0.020", "0.025"]);
        assert_eq!(
            labels(&[97.71, 97.86]),
            ["97.70", "97.72", "97.74", "97.76", "97.78", "97.80", "97.82", "97.84", "97.86"]
        );
        assert_eq!(labels(&[0.0, 4000.0]).last().map(String::as_str), Some("4,000"));
        assert_eq!(labels(&[]), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        for values in [&[5.0][..], &[0.0], &[1e9, 0.0], &[100.0, 100.0 - 1e-9], &[f64::NAN, 3.0], &[1e300]] {
            assert!((2..=12).contains(&labels(values).len()), "{values:?}");
        }
    }

    #[test]
    fn axes_include_their_values() {
        let axis = LogAxis::over([0.5, 200.0, 0.0, f64::NAN].into_iter(), 100.0, 400.0);
        assert_eq!(axis.ends(), [0.1, 1000.0]);
        assert_eq!((axis.at(0.1), axis.at(1000.0)), (100.0, 400.0));
        assert_eq!(axis.ticks().map(short).collect::<Vec<_>>(), ["0.1", "1", "10", "100", "1,000"]);
        let large = [1e-5, 20.0, 12_345.0, 1e6, 1e10].map(short);
        assert_eq!(large, ["0.00001", "20", "12,345", "1,000,000", "10,000,000,000"]);
        assert_eq!(LogAxis::over(std::iter::empty(), 0.0, 1.0).ends(), [1.0, 10.0]);
        assert_eq!(LogAxis::over([10.0].into_iter(), 0.0, 1.0).ends(), [10.0, 100.0]);
    }
}
