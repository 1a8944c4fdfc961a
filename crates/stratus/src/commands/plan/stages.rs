//! The pipeline stages of a network as text.

use crate::output::table;
use stratus_base::text::bytes;
use stratus_train::plan_summary::{PipelineStage, PipelineStages};

/// Renders one row per stage, and the pipeline's bubble. Columns that do not apply are left out.
pub(super) fn render(pipeline: &PipelineStages) -> String {
    let PipelineStages { network, parts, pipelines, bubble, stages } = pipeline;
    let several = if *pipelines > 1 { format!(" for {pipelines} pipelines") } else { String::new() };
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let numbers = (0..stages.len()).map(|number| number.to_string());
    let mut columns: Vec<Vec<String>> = vec![std::iter::once("stage".to_owned()).chain(numbers).collect()];
    let mut column = |name: &str, text: &dyn Fn(&PipelineStage) -> String| {
        columns.push(std::iter::once(name.to_owned()).chain(stages.iter().map(text)).collect());
    };
    column("layers", &|stage| stage.layers.join(" to "));
    column("FLOP share", &|stage| percent(stage.flops_share));
    if stages.iter().all(|stage| stage.time_share.is_some()) {
        column("time", &|stage| percent(stage.time_share.unwrap_or_default()));
    }
    if stages.iter().any(|stage| stage.recomputed_share > 0.0) {
        column("recomputed", &|stage| percent(stage.recomputed_share));
    }
    column("parameters", &|stage| bytes(stage.persistent_bytes as u64));
    column("parts in flight", &|stage| stage.parts_in_flight.to_string());
    column("received", &|stage| bytes(stage.received_bytes as u64));
    if stages.iter().any(|stage| stage.exchange.is_some()) {
        let exchange = |stage: &PipelineStage| {
            let exchange = stage.exchange.as_ref();
            exchange.map_or_else(String::new, |exchange| {
                let (buckets, sent) = (exchange.buckets, bytes(exchange.sent_bytes));
                format!("{} in {buckets} buckets, {sent} sent", bytes(exchange.bytes))
            })
        };
        column("gradients", &exchange);
    }
    column("memory", &|stage| bytes(stage.arena_bytes as u64));
    if stages.iter().any(|stage| stage.pinned_bytes > 0) {
        column("pinned", &|stage| bytes(stage.pinned_bytes));
    }
    let rows: Vec<Vec<String>> =
        (0..=stages.len()).map(|row| columns.iter().map(|column| column[row].clone()).collect()).collect();
    format!(
        "{network} in {} stages, batches in {parts} parts{several}\n\n{}\npipeline bubble: {:.1} % for equal \
         stages\n",
        stages.len(),
        table(&rows),
        100.0 * bubble
    )
}
