//! Workers on the nodes of a target, which starts them itself.

use crate::errors::{Failure, Result};
use stratus_launch::{LaunchSpec, TargetSettings};
use stratus_train::run::with_parts_for;

/// Prepares the experiments of a launch for the workers on the nodes of its target, and returns whether there
/// are several. `train.parts` is set to the maximum number of workers unless it is given, so that results do
/// not depend on the number of nodes that a start gets.
///
/// # Errors
/// If the launch asks for workers itself, or if there are more workers than parts.
pub(super) fn on_nodes(settings: &TargetSettings, spec: &mut LaunchSpec, has_option: bool) -> Result<bool> {
    let Some(nodes) = settings.kind.node_workers() else { return Ok(false) };
    if has_option {
        return Err(Failure::usage(format!(
            "{}: --workers cannot be used with `nodes` or `workers_per_node` of the target",
            settings.name
        ))
        .with_hint("change these keys in targets.toml"));
    }
    if nodes.max_workers() == 1 {
        return Ok(false);
    }
    let [min, max] = nodes.nodes;
    if min < max && spec.depends_on_results() && spec.cells.iter().any(|cell| cell.train.parts == 0) {
        return Err(Failure::usage(format!(
            "{}: with {min} to {max} nodes, a sweep that ends runs early by their results needs train.parts",
            settings.name
        ))
        .with_hint(format!(
            "set it to the maximum number of workers: --set train.parts={}",
            nodes.max_workers()
        )));
    }
    let workers = usize::try_from(nodes.max_workers()).unwrap_or(usize::MAX);
    for cell in &mut spec.cells {
        *cell = with_parts_for(cell, workers)?;
    }
    Ok(true)
}
