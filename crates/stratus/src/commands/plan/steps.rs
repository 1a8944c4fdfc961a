//! The steps of a plan as a table.

use std::fmt::Write;
use stratus_engine::Plan;
use stratus_engine::ops::KernelSpec;

/// Renders one line per step: phase, layer, kernel, output shape, layout, cost, implementation.
pub(super) fn render_steps(plan: &Plan) -> String {
    let program = &plan.program;
    let mut text = format!(
        "{} {} batch {}, {}\n{:>3}  {:<16} {:<28} {:<31} {:<15} {:<9} {:>8} {:>8}  {}\n",
        program.network,
        program.precision,
        program.batch,
        plan.library_description,
        "#",
        "phase",
        "layer",
        "kernel",
        "output",
        "layout",
        "MFLOP",
        "MB",
        "implementation"
    );
    for (position, step) in program.steps.iter().enumerate() {
        let output = step.outputs.first().or(step.updates.first());
        let shape = output.map_or(String::new(), |&id| {
            program.value(id).shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
        });
        let layout = output.map_or("", |&id| plan.placements[id.0].layout.tag.as_str());
        if let Some(section) = program.section_of(position).filter(|section| section.first == position) {
            let last = section.steps().end - 1;
            let _ = writeln!(text, "     {position} to {last} in {} tiles:", section.tiles);
        }
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "{position:>3}  {:<16} {:<28} {:<31} {shape:<15} {layout:<9} {:>8.1} {:>8.2}  {}",
            step.phase.name(),
            program.layer_name(step),
            step.kernel.name(),
            program.step_flops(position) as f64 * 1e-6,
            plan.step_bytes(position) as f64 * 1e-6,
            plan.steps[position].implementation,
        );
    }
    text
}
