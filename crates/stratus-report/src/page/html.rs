//! Writing of HTML, with all text escaped.

use std::fmt::Write;

use super::escape::escape;
use super::pictures::PictureSource;
use super::svg::Svg;

/// A page that is being written.
#[derive(Default)]
pub(super) struct Html {
    text: String,
    /// The source of its pictures.
    pub(super) pictures: PictureSource,
}

/// A cell of a table: its text, and a number to sort by.
pub(super) struct Cell {
    text: String,
    number: Option<f64>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    /// A number with a number of decimals; an en dash for `None`.
    pub(super) fn number(value: Option<f64>, decimals: usize) -> Self {
        let value = value.filter(|value| value.is_finite());
        let text = value.map_or("–".to_owned(), |value| format!("{value:.decimals$}"));
        Self { text, number: Some(value.unwrap_or(f64::NEG_INFINITY)) }
    }

    /// A text to be sorted by a number.
    pub(super) fn sorted(text: impl Into<String>, number: f64) -> Self {
        Self { text: text.into(), number: Some(number) }
    }
}

impl Html {
    /// An empty page whose pictures come from `pictures`.
    pub(super) fn with_pictures(pictures: PictureSource) -> Self {
        Self { text: String::new(), pictures }
    }

    /// Adds markup.
    pub(super) fn raw(&mut self, markup: &str) {
        self.text.push_str(markup);
    }

    /// Adds an element of a class with text in it.
    pub(super) fn element(&mut self, name: &str, class: &str, text: &str) {
        self.open(name, class);
        self.text.push_str(&escape(text));
        self.close(name);
    }

    /// Opens an element, with a class unless it is empty.
    pub(super) fn open(&mut self, name: &str, class: &str) {
        let attribute = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        // Writing to a String cannot fail.
        let _ = write!(self.text, "<{name}{attribute}>");
    }

    /// Closes an element.
    pub(super) fn close(&mut self, name: &str) {
        let _ = writeln!(self.text, "</{name}>");
    }

    /// Adds a drawing. In a narrow window its box scrolls, by keyboard only because it can have the focus.
    pub(super) fn drawing(&mut self, title: &str, drawing: &Svg) {
        let label = escape(title);
        let opening = format!("<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{label}\">");
        self.raw(&opening);
        self.raw(&drawing.inline(title));
        self.close("div");
    }

    /// Adds a drawing whose points can have the focus one by one.
    pub(super) fn points(&mut self, title: &str, drawing: &Svg) {
        let label = escape(title);
        self.raw(&format!(
            "<div class=\"scroll points\" tabindex=\"0\" role=\"group\" aria-label=\"{label}\">"
        ));
        self.raw(&drawing.group(title));
        self.close("div");
    }

    /// Adds a part of a section, by whose name a live page finds what it renews. Empty parts are kept.
    pub(super) fn part(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.text, "<div data-part=\"{name}\">");
        write(self);
        self.close("div");
    }

    /// Adds the container of an interactive chart; `id` is its name in the script.
    pub(super) fn chart(&mut self, id: &str, run: usize, title: &str, note: &str) {
        self.open("figure", "");
        self.element("figcaption", "", title);
        let _ = writeln!(self.text, "<div class=\"chart\" data-chart=\"{id}\" data-run=\"{run}\"></div>");
        if !note.is_empty() {
            self.element("p", "note", note);
        }
        self.close("figure");
    }

    /// Adds a table that can be sorted by its columns. The first column has names.
    pub(super) fn table(&mut self, heads: &[&str], rows: &[Vec<Cell>]) {
        self.raw("<div class=\"scroll\"><table class=\"sortable\">\n<thead>");
        self.heads(heads);
        self.raw("</thead>\n<tbody>\n");
        for row in rows {
            self.raw("<tr>");
            self.cells(row);
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
    }

    /// Adds the row of headings of a table that can be sorted.
    pub(super) fn heads(&mut self, heads: &[&str]) {
        self.raw("<tr>");
        for head in heads {
            self.raw("<th scope=\"col\"><button type=\"button\">");
            self.raw(&escape(head));
            self.raw("</button></th>");
        }
        self.raw("</tr>");
    }

    /// Adds cells to a row.
    pub(super) fn cells(&mut self, cells: &[Cell]) {
        for cell in cells {
            match cell.number {
                Some(number) if number.is_finite() => {
                    _ = write!(self.text, "<td class=\"n\" data-n=\"{number}\">");
                }
                Some(_) => self.raw("<td class=\"n\">"),
                None => self.raw("<td>"),
            }
            self.raw(&escape(&cell.text));
            self.raw("</td>");
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_becomes_markup() {
        let mut html = Html::default();
        html.table(&["<b>"], &[vec![Cell::text("</td><script>"), Cell::number(Some(f64::NAN), 1)]]);
        let text = html.finish();
        assert!(!text.contains("<script>") && !text.contains("<b>") && text.contains("–"), "{text}");
    }
}
