//! The layers of an optimised network that run in int8, what each loses and gains, and the others.

use super::html::{Cell, Html};
use stratus_base::text::counted;
use stratus_run::quantisation::{KeptLayer, Quantisation, QuantisedLayer};

/// Maximum number of layers in a table.
const MAX_LAYERS: usize = 1000;

/// Adds the tables of the layers.
pub(super) fn section(html: &mut Html, quantisation: &Quantisation) {
    let Quantisation { precision, layers, kept, .. } = quantisation;
    html.raw("<details>");
    let count = counted(layers.len() as u64, "layer");
    html.element("summary", "", &format!("{count} in int8, the others in {precision}"));
    let mut note = "Divergence: how much the predictions change if only the layers that read the same map \
                    run in int8, in thousandths of a nat for each image or pixel. Milliseconds of one image \
                    alone, with what is fused with the layer and the conversion of its input."
        .to_owned();
    if layers.len().max(kept.len()) > MAX_LAYERS {
        note += &format!(" The tables have the first {MAX_LAYERS} layers.");
    }
    html.element("p", "note", &note);
    let rows: Vec<Vec<Cell>> = layers.iter().take(MAX_LAYERS).map(row).collect();
    html.table(&["layer", "divergence", &format!("{precision} ms"), "int8 ms", "times as fast"], &rows);
    if !kept.is_empty() {
        let rows = kept
            .iter()
            .take(MAX_LAYERS)
            .map(|KeptLayer { layer, reason }| vec![Cell::text(layer.clone()), Cell::text(reason.clone())]);
        html.table(&["layer that is not in int8", "reason"], &rows.collect::<Vec<_>>());
    }
    html.close("details");
}

fn row(layer: &QuantisedLayer) -> Vec<Cell> {
    let divergence = 1e3 * layer.divergence;
    let measured = |value: Option<f64>, digits: usize| match value.filter(|value| value.is_finite()) {
        Some(value) => Cell::sorted(format!("{value:.digits$}"), value),
        None => Cell::sorted("–".to_owned(), f64::NEG_INFINITY),
    };
    vec![
        Cell::text(layer.layer.clone()),
        measured(Some(divergence), 4),
        measured(layer.ms.map(|ms| ms[0]), 4),
        measured(layer.ms.map(|ms| ms[1]), 4),
        measured(layer.ms.map(|ms| ms[0] / ms[1]), 2),
    ]
}
