//! The memory budget of pipeline stages: which cuts keep all stages within `train.memory_limit_mib`, and
//! whether it is faster to move the cuts or to recompute activations.

use super::fit::MAX_ATTEMPTS;
use super::memory::stage_memory_limit_error;
use super::variant::StageBudget;
use crate::TrainError;
use crate::resolve::ResolvedProcess;
use stratus_engine::EngineError;

/// The maximum ratio of the next budget to the previous one, if a stage exceeded the memory limit.
const MAX_BUDGET_SHARE: f64 = 0.98;

/// Plans of stages within a budget.
pub(super) struct StageFit<T> {
    pub planned: T,
    /// Bytes of the largest stage.
    pub largest_bytes: usize,
    /// The cost of the slowest stage, with its recomputed activations.
    pub slowest_cost: f64,
}

/// The plans of the fastest stages that are within the memory limit. Without a limit, the cuts are those of
/// the fastest stages. Otherwise two variants are planned, and the one with the faster slowest stage is
/// chosen:
///
/// ```text
/// keep activations     move cuts until all stages are within the limit
/// recompute            the fastest cuts that are within it if everything was recomputed;
///                      each stage recomputes only as much as its limit requires
/// ```
///
/// `plan` plans all stages in a budget. All workers call it with the same budgets, since they compare the
/// same bytes and costs.
///
/// # Errors
/// If no budget fits, or planning fails.
pub(super) fn fit_stage_budget<T>(
    resolved: &ResolvedProcess,
    plan: &mut dyn FnMut(StageBudget) -> Result<StageFit<T>, TrainError>,
) -> Result<T, TrainError> {
    let limit = resolved.memory_limit();
    let keeping = StageBudget::keeping(limit);
    let recomputing = StageBudget { recomputes: true, ..keeping };
    let mut min_bytes = usize::MAX;
    let kept = within_limit(limit, keeping, &mut min_bytes, plan)?;
    let recomputed = match limit {
        usize::MAX => None,
        _ => within_limit(limit, recomputing, &mut min_bytes, plan)?,
    };
    let fits = [kept, recomputed].into_iter().flatten();
    let fastest = fits.min_by(|one, other| one.slowest_cost.total_cmp(&other.slowest_cost));
    fastest.map(|fit| fit.planned).ok_or_else(|| stage_memory_limit_error(resolved, min_bytes))
}

/// Reduces the budget by which the network is cut until the largest stage, with its scratch, is within the
/// limit. `None` if no budget is small enough; `min_bytes` becomes the bytes of
/// the largest stage, in the budget in which that is smallest.
fn within_limit<T>(
    limit: usize,
    budget: StageBudget,
    min_bytes: &mut usize,
    plan: &mut dyn FnMut(StageBudget) -> Result<StageFit<T>, TrainError>,
) -> Result<Option<StageFit<T>>, TrainError> {
    let mut bytes = limit;
    for _ in 0..MAX_ATTEMPTS {
        let fit = match plan(StageBudget { bytes, ..budget }) {
            Ok(fit) => fit,
            // The budget is smaller than any partition needs.
            Err(error) if limit < usize::MAX && is_too_small(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if fit.largest_bytes <= limit {
            return Ok(Some(fit));
        }
        *min_bytes = (*min_bytes).min(fit.largest_bytes);
        let share = (limit as f64 / fit.largest_bytes as f64).min(MAX_BUDGET_SHARE);
        bytes = (bytes as f64 * share) as usize;
    }
    Ok(None)
}

/// Returns whether an error says that no partition of the network is within the budget.
fn is_too_small(error: &TrainError) -> bool {
    matches!(error.reason(), TrainError::Engine(EngineError::StagesTooLarge { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{FittedRun, KernelSelection, fit_stages};
    use crate::device::OpenDevice;
    use crate::network::Network;
    use stratus_data::{Split, open};
    use stratus_engine::reference::ReferenceBackend;
    use stratus_experiment::Experiment;
    use stratus_graph::Graph;

    fn resnet(keys: &[(&str, &str)]) -> (ResolvedProcess, Graph, OpenDevice) {
        let set = [
            ("data.name", "synthetic"),
            ("data.synthetic.images", "256"),
            ("data.shape", "[3, 32, 32]"),
            ("model.width", "8"),
            ("train.batch_size", "128"),
            ("train.parts", "4"),
            ("train.stages", "2"),
        ];
        let keys: Vec<_> = set.iter().chain(keys).copied().collect();
        let experiment = Experiment::builtin("resnet18_cifar").unwrap().with_overrides(&keys).unwrap();
        let options = crate::input::open_options(&experiment);
        let data = open("synthetic", std::path::Path::new(""), Split::Train, &options).unwrap();
        let graph = Network::for_dataset(&experiment, data.as_ref()).unwrap().graph;
        let device = OpenDevice { tile_kib: 0, ..OpenDevice::new(Box::new(ReferenceBackend)) };
        let resolved = ResolvedProcess::new(&experiment, data.as_ref(), &graph, &device).unwrap();
        (resolved, graph, device)
    }

    fn stages(limit_mib: usize) -> Result<Vec<FittedRun>, TrainError> {
        let limit = limit_mib.to_string();
        let keys = [("train.memory_limit_mib", limit.as_str())];
        let (resolved, graph, device) = resnet(if limit_mib == 0 { &[] } else { &keys });
        fit_stages(&resolved, &graph, &device, &KernelSelection::FirstSupported, &mut |text| panic!("{text}"))
    }

    fn largest(stages: &[FittedRun]) -> usize {
        stages.iter().map(|run| run.planned.arena_bytes()).max().unwrap()
    }

    /// The cost of recomputed activations, as a multiple of that of all stages.
    fn recomputed(stages: &[FittedRun]) -> f64 {
        let costs = stages.iter().map(|run| run.stage_cost.unwrap().steps);
        let (recomputed, total): (Vec<f64>, Vec<f64>) =
            costs.map(|cost| (cost.recomputed, cost.total)).unzip();
        recomputed.iter().sum::<f64>() / total.iter().sum::<f64>()
    }

    #[test]
    fn a_lower_limit_recomputes_more() {
        let whole = stages(0).unwrap();
        assert_eq!(recomputed(&whole), 0.0);
        let Err(TrainError::Configuration { problem, .. }) = stages(1).map(drop) else {
            panic!("1 MiB is enough");
        };
        assert!(problem.contains("in 2 stages of 4 parts, the largest stage of"), "{problem}");
        let whole_mib = largest(&whole).div_ceil(1 << 20);
        let mut shares = Vec::new();
        for limit_mib in (2..=whole_mib).rev() {
            let Ok(stages) = stages(limit_mib) else { break };
            assert!(largest(&stages) <= limit_mib << 20, "{limit_mib} MiB");
            shares.push(recomputed(&stages));
        }
        // Nothing is recomputed within the full need; little just below it, more further below.
        let (first, last) = (shares[1], shares[shares.len() - 1]);
        assert!(shares.len() > 3 && shares[0] == 0.0 && first < last && last > 0.0, "{shares:?}");
        assert!(first < 0.5 * last, "{shares:?}");
    }

    /// A plan of stages whose bytes and cost are made up.
    fn fitted(
        limit_mib: &str,
        plan: &mut dyn FnMut(StageBudget) -> (usize, f64),
    ) -> Result<bool, TrainError> {
        let (resolved, ..) = resnet(&[("train.memory_limit_mib", limit_mib)]);
        fit_stage_budget(&resolved, &mut |budget| {
            let (largest_bytes, slowest_cost) = plan(budget);
            Ok(StageFit { planned: budget.recomputes, largest_bytes, slowest_cost })
        })
    }

    #[test]
    fn the_faster_way_within_the_limit_is_chosen() {
        const LIMIT: usize = 100 << 20;
        // Without recomputation, cuts within the limit are slow.
        let moved = |cost: f64| {
            move |budget: StageBudget| match budget.recomputes {
                true => (LIMIT, 1.2),
                false if budget.bytes > LIMIT * 3 / 4 => (LIMIT + 1, 1.0),
                false => (LIMIT * 3 / 4, cost),
            }
        };
        assert!(fitted("100", &mut moved(1.5)).unwrap());
        assert!(!fitted("100", &mut moved(1.1)).unwrap());
        // Nothing is within the limit.
        let error = fitted("100", &mut |_| (LIMIT + 1, 1.0)).unwrap_err().to_string();
        assert!(error.contains("needs at least 101 MiB"), "{error}");
    }
}
