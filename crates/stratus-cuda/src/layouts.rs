//! How values lie: feature maps and kernels of convolutions channels last, the weights of a linear layer behind a feature map as that lies.

use std::collections::HashMap;
use stratus_engine::{EngineError, Kernel, Layout, PrepareRequest, Program, ValueId};

/// A layout for every value of a program.
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

/// The weights of linear layers that read feature maps of more than one pixel, and all that is added to them or kept for them.
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
    // What is combined element by element lies alike: copies, gradients, sums of tiles, velocities.
    loop {
        let before = found.len();
        for step in &program.steps {
            let alike = matches!(
                step.kernel,
                Kernel::Convert(_)
                    | Kernel::Accumulate(_)
                    | Kernel::AddTiles(_)
                    | Kernel::SgdUpdate(_)
                    | Kernel::AdaptiveUpdate(_)
                    | Kernel::LinearUpdate(_)
            );
            let Some(layout) =
                alike.then(|| step.operands().find_map(|id| found.get(&id).cloned())).flatten()
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
