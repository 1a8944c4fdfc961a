//! Chooses the candidate of a step: the one in the plan, the fastest, or oneDNN's first.

use super::builder::PlanBuilder;
use super::layouts::reshape_layout;
use super::measure::{BenchCandidate, has_lost};
use super::timed_plan::is_faster;
use crate::ffi::DataType;
use crate::ops::{
    self, Candidate, REORDERED, SEPARATE, is_fallback, is_generalised, register_bytes, runs_on_amx,
};
use std::time::Duration;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{KernelSpec, Reorder};
use stratus_engine::{Layout, PreparedStep, Step, Value};

/// The chosen candidate of a step, and its kernel.
pub(crate) struct Selection {
    pub candidate: Candidate,
    pub kernel: PreparedStep,
}

impl PlanBuilder<'_> {
    /// Takes the candidate in the plan, or else the fastest. `weights` is the layout and type of the weights
    /// that a [`REORDERED`] candidate would reorder: the time includes the reorder.
    pub(crate) fn choose(
        &mut self,
        step: &Step,
        mut candidates: Vec<Candidate>,
        weights: Option<&(Layout, DataType)>,
    ) -> Result<Selection, String> {
        let key = step_key(self.source, step);
        // A recomputed step must give the same bits as the first time, so it runs on the same implementation.
        // The layout of its weights may have changed since.
        let earlier = self.choices.implementations.get(&key);
        if let Some(required) = earlier.or(self.request.choices.implementations.get(&key)) {
            let position =
                |is: &dyn Fn(&str) -> bool| candidates.iter().position(|candidate| is(&candidate.name));
            let except_weights =
                || earlier.and_then(|_| position(&|name| without_suffix(name) == without_suffix(required)));
            let found = position(&|name| name == required).or_else(except_weights);
            let Some(found) = found else {
                let offered: Vec<&str> = candidates.iter().map(|c| c.name.as_str()).collect();
                return Err(format!(
                    "the plan uses `{required}`, but this oneDNN offers {offered:?}: \
                     a plan requires the machine and library version it was made with"
                ));
            };
            return self.select(key, candidates.swap_remove(found));
        }
        if !self.options.fallbacks {
            if candidates.iter().all(|candidate| is_fallback(&candidate.name)) {
                return Err("oneDNN has only a reference kernel".to_owned());
            }
            let on_amx = |candidate: &Candidate| runs_on_amx(&candidate.name);
            if self.needs_amx(step)? && !candidates.iter().any(on_amx) {
                return Err("no AMX kernel".to_owned());
            }
        }
        if !self.request.measure || (candidates.len() == 1 && !self.options.measure_maps) {
            // oneDNN's own order is best first.
            candidates.truncate(1);
            let first = candidates.pop().ok_or("oneDNN has no implementation")?;
            return self.select(key, first);
        }
        let times = self.time_candidates(step, &candidates)?;
        let mut measured: Vec<(Candidate, Duration)> = candidates.into_iter().zip(times).collect();
        // Native kernels are measured first, because the incumbent wins ties: they prefetch, and lose less
        // while the memory is busy.
        measured.sort_by_key(|(candidate, _)| !candidate.is_native());
        let mut best: Option<(Duration, Candidate)> = None;
        for (candidate, mut time) in measured {
            let lost = best.as_ref().is_some_and(|(best_time, _)| !is_faster(time, *best_time));
            let reordered = candidate.name.ends_with(REORDERED);
            if let (false, true, Some((layout, dtype))) = (lost, reordered, weights) {
                time += self.time_reorder(step, &candidate, layout, *dtype)?;
            }
            if best.as_ref().is_none_or(|(best_time, _)| is_faster(time, *best_time)) {
                best = Some((time, candidate));
            }
        }
        let (time, candidate) = best.ok_or("oneDNN has no implementation")?;
        self.time += time * self.tiles as u32;
        self.select(key, candidate)
    }

    /// Returns whether every kernel without AMX would be several times slower.
    fn needs_amx(&self, step: &Step) -> Result<bool, String> {
        Ok(self.backend.context.has_amx()
            && (self.ops)(&step.kernel).onednn_use().is_some_and(|onednn| onednn.fills_amx_tiles)
            && self.data_type(step.inputs[0])? == DataType::Bf16)
    }

    fn select(&mut self, key: String, candidate: Candidate) -> Result<Selection, String> {
        self.choices.implementations.entry(key).or_insert_with(|| candidate.name.clone());
        let kernel = self.kernel(&candidate)?;
        Ok(Selection { candidate, kernel })
    }

    /// Prepares a candidate as a step.
    pub(super) fn kernel(&self, candidate: &Candidate) -> Result<PreparedStep, String> {
        Ok(PreparedStep {
            implementation: candidate.name.clone(),
            scratch_bytes: candidate.scratch_bytes(),
            kernel: candidate.build(&self.backend.cpu.team)?,
        })
    }

    /// The times of a step's candidates; [`Duration::MAX`] for those that were skipped. These implementations
    /// of oneDNN are skipped:
    ///
    /// - reference kernels, whose time is estimated;
    /// - those without AMX if another has it and the channels fill its tiles;
    /// - those with narrower registers than another's;
    /// - the general one of a family that has a special one for 1×1 kernels;
    /// - those after one that has lost, because oneDNN's order is best first.
    pub(super) fn time_candidates(
        &mut self,
        step: &Step,
        candidates: &[Candidate],
    ) -> Result<Vec<Duration>, String> {
        let team = &self.backend.cpu.team;
        let onednn_use = (self.ops)(&step.kernel).onednn_use();
        let on_amx = |candidate: &Candidate| !candidate.is_native() && runs_on_amx(&candidate.name);
        let has_amx =
            onednn_use.is_some_and(|onednn| onednn.fills_amx_tiles) && candidates.iter().any(on_amx);
        let is_convolution = onednn_use.is_some_and(|onednn| onednn.is_convolution);
        let registers = |candidate: &Candidate| {
            if candidate.is_native() {
                return None;
            }
            // An `im2col` convolution, whose matrix holds every pixel once per tap.
            let is_im2col = is_convolution && candidate.name.contains("gemm");
            if is_im2col { Some(0) } else { register_bytes(&candidate.name) }
        };
        let widest = candidates.iter().filter_map(registers).max();
        // Each of oneDNN's lists has its own order.
        let list = |candidate: &Candidate| {
            let is_separate = candidate.name.starts_with(SEPARATE);
            (candidate.is_native(), is_separate, candidate.name.ends_with(REORDERED))
        };
        let mut make = |number: usize, times: &[Option<Duration>]| {
            let candidate = &candidates[number];
            let best = times.iter().flatten().min();
            let lost_before = |(time, before): (&Option<Duration>, &Candidate)| {
                list(before) == list(candidate)
                    && time.zip(best).is_some_and(|(time, best)| has_lost(time, *best))
            };
            let is_hopeless = || {
                has_amx && !on_amx(candidate)
                    || registers(candidate).is_some_and(|bytes| Some(bytes) < widest)
                    || candidates[..number].iter().any(|before| is_generalised(&candidate.name, &before.name))
                    || times.iter().zip(candidates).any(lost_before)
            };
            if is_fallback(&candidate.name) || !candidate.is_native() && is_hopeless() {
                return Ok(None);
            }
            let operands = candidate.operands.iter().map(|(_, desc)| desc.bytes());
            let sizes = operands.chain([candidate.scratch_bytes()]).collect();
            Ok(Some(BenchCandidate { kernel: candidate.build(team)?, sizes }))
        };
        let keys = candidates.iter().map(|candidate| {
            let mut description = format!("{:?} {}", step.kernel, without_suffix(&candidate.name));
            for (argument, desc) in &candidate.operands {
                description += &format!(" {argument} {} {:?}", desc.bytes(), desc.layout()?);
            }
            Ok(self.bench.timing_key(&description))
        });
        let keys = keys.collect::<Result<Vec<_>, String>>()?;
        let times = self.bench.times(&self.backend.timings, &keys, &mut make)?;
        let each = candidates.iter().zip(times).map(|(candidate, time)| {
            let guess = || {
                if is_fallback(&candidate.name) { self.estimate_reference_time(step) } else { Duration::MAX }
            };
            time.unwrap_or_else(guess)
        });
        Ok(each.collect())
    }

    /// An estimate of a reference kernel's time: measuring one may take seconds.
    fn estimate_reference_time(&self, step: &Step) -> Duration {
        const FLOPS_PER_SECOND: f64 = 1e9;
        let operands: Vec<Value> = step.operands().map(|id| self.program.tile_view(id, self.tiles)).collect();
        let operands: Vec<&Value> = operands.iter().collect();
        Duration::from_secs_f64(step.kernel.flops(&operands) as f64 / FLOPS_PER_SECOND)
    }

    /// The time of a reorder of weights from `layout` to the one that `candidate` takes.
    fn time_reorder(
        &mut self,
        step: &Step,
        candidate: &Candidate,
        layout: &Layout,
        dtype: DataType,
    ) -> Result<Duration, String> {
        let Some((_, weights)) = candidate.weights() else { return Ok(Duration::ZERO) };
        let layout = reshape_layout(layout, &weights.layout()?.shape)?;
        let from = self.backend.desc(&layout, dtype)?;
        let conversion = ops::conversion_candidate(&self.kernel_builder, [&from, weights], [dtype; 2])?;
        let reorder = Step { kernel: Reorder.into(), ..step.clone() };
        Ok(self.time_candidates(&reorder, &[conversion])?.into_iter().sum())
    }
}

/// The name of an implementation without the suffix of reordered weights.
fn without_suffix(name: &str) -> &str {
    name.trim_end_matches(REORDERED)
}
