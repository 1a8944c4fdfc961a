//! Small square charts beside each other: a panel for each label or target.

use super::escape::escape;
use super::html::Html;
use super::svg::{Anchor, LinearAxis, Svg};

/// Maximum number of panels of a section.
pub(super) const MAX_PANELS: usize = 12;
/// Maximum number of labels of an axis.
const MAX_TICK_LABELS: usize = 5;
/// Numbers from here on are written with an exponent.
const MIN_LARGE: f64 = 1e6;
const SIDE: f64 = 200.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 22.0;

/// A chart whose axes have the same range.
pub(super) struct Panel {
    svg: Svg,
    x: LinearAxis,
    y: LinearAxis,
    /// The ends of the axes.
    range: [f64; 2],
}

impl Panel {
    /// A chart of `values` along both axes.
    pub(super) fn over(values: impl Iterator<Item = f64> + Clone, [x_name, y_name]: [&str; 2]) -> Self {
        let (right, bottom) = (LEFT + SIDE, TOP + SIDE);
        let x = LinearAxis::over(values.clone(), LEFT, right);
        let y = LinearAxis::over(values, bottom, TOP);
        let mut svg = Svg::new(right + 14.0, bottom + 38.0);
        let ticks: Vec<f64> = x.ticks().collect();
        let distance = ticks.len().div_ceil(MAX_TICK_LABELS).max(1);
        for (number, &tick) in ticks.iter().enumerate() {
            svg.line("grid", &[[x.at(tick), TOP], [x.at(tick), bottom]]);
            svg.line("grid", &[[LEFT, y.at(tick)], [right, y.at(tick)]]);
            if number % distance == 0 {
                let label = if tick.abs() < MIN_LARGE { x.label(tick) } else { format!("{tick:.1e}") };
                svg.text("tick", [x.at(tick), bottom + 15.0], Anchor::Middle, &label);
                svg.text("tick", [LEFT - 6.0, y.at(tick) + 4.0], Anchor::End, &label);
            }
        }
        svg.text("tick", [LEFT + SIDE / 2.0, bottom + 32.0], Anchor::Middle, x_name);
        svg.text("tick", [LEFT, 14.0], Anchor::Start, y_name);
        let range = [ticks.first(), ticks.last()].map(|tick| tick.copied().unwrap_or_default());
        Self { svg, x, y, range }
    }

    /// The ends of the axes.
    pub(super) fn range(&self) -> [f64; 2] {
        self.range
    }

    /// Adds a line of a class through points.
    pub(super) fn line(&mut self, class: &str, points: &[[f64; 2]]) {
        let points: Vec<[f64; 2]> = points.iter().map(|point| self.at(*point)).collect();
        self.svg.line(class, &points);
    }

    /// Adds a circle; `title` is its tooltip.
    pub(super) fn circle(&mut self, class: &str, point: [f64; 2], title: &str) {
        let at = self.at(point);
        self.svg.circle(class, at, 4.5, None, title);
    }

    /// Adds a dot for each point, all in one element.
    pub(super) fn dots(&mut self, points: impl Iterator<Item = [f64; 2]>) {
        let dots: Vec<String> =
            points.map(|point| self.at(point)).map(|[x, y]| format!("M{x:.2} {y:.2}h0")).collect();
        self.svg.path("dots", &dots.concat(), "");
    }

    fn at(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        [self.x.at(x), self.y.at(y)]
    }

    /// Adds the chart to a page: `name` and `facts` are below it, `title` is read aloud.
    pub(super) fn show(&self, html: &mut Html, title: &str, name: &str, facts: &str) {
        html.open("figure", "plot");
        html.raw(&format!(
            "<figcaption>{} <span class=\"muted\">{}</span></figcaption>\n",
            escape(name),
            escape(facts)
        ));
        html.raw(&self.svg.inline(title));
        html.close("figure");
    }
}

/// The items in the order of their values, the lowest first. Undefined values come last.
pub(super) fn lowest_first<T>(items: &[T], value: impl Fn(&T) -> Option<f64>) -> Vec<&T> {
    let mut sorted: Vec<&T> = items.iter().collect();
    // Equal values stay in their order.
    let key = |item: &T| value(item).unwrap_or(f64::INFINITY);
    sorted.sort_by(|one, other| key(one).total_cmp(&key(other)));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panel_has_few_labels_and_escapes_names() {
        for values in [vec![], vec![0.0], vec![-3e38, 3e38], vec![1e7, 1.1e7], vec![-0.3, 99.0], vec![1e-9]] {
            let mut panel = Panel::over(values.iter().copied(), ["x", "y"]);
            let [low, high] = panel.range();
            assert!(low < high && values.iter().all(|value| (low..=high).contains(value)), "{values:?}");
            panel.dots([[low, high]].into_iter());
            let mut html = Html::default();
            panel.show(&mut html, "a<b", "</figcaption><script>", "\"&");
            let text = html.finish();
            let labels = text.matches("text-anchor=\"end\"").count();
            assert!((1..=MAX_TICK_LABELS).contains(&labels), "{values:?}: {labels}");
            assert!(text.contains("d=\"M52.00 22.00h0\"") && !text.contains("<script>"), "{text}");
            assert!(text.contains("aria-label=\"a&lt;b\""), "{text}");
        }
    }

    #[test]
    fn undefined_values_come_last() {
        let values = [Some(0.5), None, Some(-1.0), Some(0.5), Some(0.2)];
        let sorted = lowest_first(&values, |value| *value);
        assert_eq!(sorted, [&values[2], &values[4], &values[0], &values[3], &values[1]]);
    }
}
