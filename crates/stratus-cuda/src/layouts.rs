//! The layout of every value: channels last for feature maps and filters; the weight of a linear layer that
//! reads a feature map `[C, H, W]` has its columns in the order of that map in memory, `[H, W, C]`.

use std::collections::HashMap;
use stratus_engine::{EngineError, Kernel, Layout, PrepareRequest, Program, ValueId};

/// Lays out every value of a program; persistent values that `request` fixes keep their layout.
pub(crate) fn lay_out(program: &Program, request: &PrepareRequest) -> Result<Vec<Layout>, EngineError> {
    let mut layouts: Vec<Layout> =
        program.values.iter().map(|value| Layout::channels_last(&value.shape)).collect();
    for (id, layout) in weights_of_maps(program) {
        layouts[id.0] = layout;
    }
    for (value, layout) in program.values.iter().zip(&mut layouts) {
        let Some(fixed) = request.fixed.get(&value.name).filter(|_| value.role.is_persistent()) else {
            continue;
        };
        *layout = fixed.clone();
    }
    Ok(layouts)
}

/// The weights of linear layers that read feature maps of more than one pixel, with their gradients, copies
/// and optimiser states.
fn weights_of_maps(program: &Program) -> HashMap<ValueId, Layout> {
    let mut found: HashMap<ValueId, Layout> = HashMap::new();
    for step in &program.steps {
        let (x, weight, out) = match &step.kernel {
            Kernel::LinearForward(k) => (step.inputs[0], step.inputs[1], k.linear.out_features),
            Kernel::LinearBackwardData(k) => (step.outputs[0], step.inputs[1], k.linear.out_features),
            Kernel::LinearBackwardWeights(k) => (step.inputs[0], step.outputs[0], k.linear.out_features),
            Kernel::LinearUpdate(k) => (step.inputs[0], step.updates[0], k.linear.out_features),
            _ => continue,
        };
        if let [_, channels, height, width] = program.value(x).shape[..]
            && height * width > 1
        {
            found.insert(weight, Layout::channels_last(&[out, channels, height, width]));
        }
    }
    if found.is_empty() {
        return found;
    }
    // Values that an elementwise kernel combines have one layout: copies, gradients, sums of tiles,
    // velocities.
    loop {
        let before = found.len();
        for step in &program.steps {
            let elementwise = matches!(
                step.kernel,
                Kernel::Convert(_)
                    | Kernel::Accumulate(_)
                    | Kernel::TreeSum(_)
                    | Kernel::AddTiles(_)
                    | Kernel::SgdUpdate(_)
                    | Kernel::AdaptiveUpdate(_)
                    | Kernel::LinearUpdate(_)
                    | Kernel::EmaUpdate(_)
                    | Kernel::ClipGradient(_)
            );
            let Some(layout) =
                elementwise.then(|| step.operands().find_map(|id| found.get(&id).cloned())).flatten()
            else {
                continue;
            };
            let elements = layout.shape.iter().product::<usize>();
            for id in step.operands() {
                let value = program.value(id);
                if value.elements() == elements && !value.per_sample && value.shape.len() == 2 {
                    found.entry(id).or_insert_with(|| layout.clone());
                }
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
