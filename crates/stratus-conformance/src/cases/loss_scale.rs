//! Loss scaling: gradients with and without overflow, a scale that shrinks, grows or stays.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{AdjustLossScale, FindOverflow, Kernel, LOSS_SCALE_FIELDS};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[1][..], &[33], &[10, 1568], &[32, 16, 3, 3], &[257, 129, 3, 3]] {
        cases.extend(searches(shape));
    }
    for (change, scale, grows_after) in [
        ("stays", numbers(-3.0, 5.0, 0.0, 7.0), 100),
        ("grows", numbers(2.0, 99.0, 0.0, 7.0), 100),
        ("shrinks", numbers(2.0, 99.0, 1.0, 7.0), 100),
        ("is least", numbers(-100.0, 1.0, 1.0, 0.0), 100),
        ("is largest", numbers(100.0, 0.0, 0.0, 0.0), 1),
    ] {
        let case = Case::new(
            format!("adjust_loss_scale {change}"),
            AdjustLossScale { growth_interval: grows_after },
        );
        cases.push(case.loss_scale_update(scale).loss_scaled_only());
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    searches(&[512, 512, 3, 3])
}

/// The contents of a loss scale.
pub(super) fn numbers(exponent: f32, iterations: f32, overflow: f32, skipped: f32) -> Fill {
    Fill::Exact([exponent, iterations, overflow, skipped])
}

/// A finite gradient, and one whose last element is infinite; an existing flag stays.
fn searches(shape: &[usize]) -> Vec<Case> {
    let finite = Fill::Uniform { low: -1.0, high: 1.0 };
    let case = |overflow: &str, fill, before| {
        Case::new(format!("find_overflow {overflow} {}", extents(shape)), FindOverflow)
            .filled("gradient", shape, DTypeClass::Master, fill)
            .loss_scale_update(numbers(1.0, 2.0, before, 3.0))
            .loss_scaled_only()
    };
    vec![case("none", finite, 0.0), case("before", finite, 1.0), case("at the end", Fill::WithInfinity, 0.0)]
}

impl Case {
    /// Restricts the case to the precision with loss scaling.
    pub(super) fn loss_scaled_only(mut self) -> Self {
        self.precisions.retain(|&precision| precision == stratus_engine::Precision::F16);
        self
    }

    /// An optimiser's step with a scaled loss: after a skipped iteration, and skipped itself, so that only
    /// the copy is written.
    pub(super) fn with_loss_scaling(self, kernel: impl Into<Kernel>, shape: &[usize]) -> [Self; 2] {
        let step = Self { kernel: kernel.into(), ..self };
        let with = |prefix: &str, overflow| {
            let case = Self { name: format!("{prefix} {}", step.name), ..step.clone() };
            case.loss_scale(numbers(-14.0, 5.0, overflow, 1.0)).loss_scaled_only()
        };
        [with("scaled", 0.0), with("scaled skipped", 1.0).output("copy", shape, DTypeClass::Compute)]
    }

    /// Adds the loss scale as an input.
    pub(super) fn loss_scale(self, scale: Fill) -> Self {
        self.filled("loss_scale", &[LOSS_SCALE_FIELDS.len()], DTypeClass::Master, scale)
    }

    /// Adds the loss scale as an update.
    fn loss_scale_update(self, scale: Fill) -> Self {
        self.update("loss_scale", &[LOSS_SCALE_FIELDS.len()], Role::OptimiserState, scale, DTypeClass::Master)
    }
}
