//! The pipeline stages of a network as text.

use crate::output::table;
use stratus_base::text::bytes;
use stratus_train::plan_summary::PipelineStages;

/// Renders one row per stage, and the pipeline's bubble.
pub(super) fn render(pipeline: &PipelineStages) -> String {
    let PipelineStages { network, parts, pipelines, bubble, stages } = pipeline;
    let several = if *pipelines > 1 { format!(" for {pipelines} pipelines") } else { String::new() };
    let head = ["stage", "layers", "FLOP share", "parameters", "parts in flight", "received", "memory"];
    let mut rows: Vec<[String; 7]> = vec![head.map(str::to_owned)];
    for (number, stage) in stages.iter().enumerate() {
        let [first, last] = &stage.layers;
        rows.push([
            number.to_string(),
            format!("{first} to {last}"),
            format!("{:.1} %", 100.0 * stage.flops_share),
            bytes(stage.persistent_bytes as u64),
            stage.parts_in_flight.to_string(),
            bytes(stage.received_bytes as u64),
            bytes(stage.arena_bytes as u64),
        ]);
    }
    format!(
        "{network} in {} stages, batches in {parts} parts{several}\n\n{}\npipeline bubble: {:.1} % for equal \
         stages\n",
        stages.len(),
        table(&rows),
        100.0 * bubble
    )
}
