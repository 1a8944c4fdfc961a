//! Which way to run a step: the requested one, the fastest, or the library's first.

use super::measure::{Contender, is_far_behind, key};
use super::{Builder, Terms, is_faster};
use crate::ffi::DataType;
use crate::ops::{
    self, Candidate, REORDERED, Run, fills_tiles, is_convolution, is_fallback, is_generalised,
    register_bytes, runs_on_tiles,
};
use std::time::Duration;
use stratus_engine::backend::step_key;
use stratus_engine::ops::{KernelSpec, Reorder};
use stratus_engine::{Layout, PreparedStep, Step, Value};

/// What was chosen, and its kernel.
pub(super) struct Chosen {
    pub candidate: Candidate,
    pub kernel: PreparedStep,
}

impl Builder<'_> {
    /// Takes the requested candidate, or the fastest. `lies` is how the weights lie that a `+reorder` candidate moves: what that costs counts.
    pub(super) fn choose(
        &mut self,
        step: &Step,
        terms: Terms,
        mut candidates: Vec<Candidate>,
        lies: Option<&(Layout, DataType)>,
    ) -> Result<Chosen, String> {
        let key = step_key(self.source, step);
        // A step that is run once more, to make an activation again, must give the same bits: it runs as the first time. By then its weights lie
        // in some way, of which that may not be the one.
        let earlier = self.choices.implementations.get(&key);
        if let Some(wanted) = earlier.or(self.request.choices.implementations.get(&key)) {
            let position =
                |is: &dyn Fn(&str) -> bool| candidates.iter().position(|candidate| is(&candidate.name));
            let but_for_weights = || earlier.and_then(|_| position(&|name| bare(name) == bare(wanted)));
            let found = position(&|name| name == wanted).or_else(but_for_weights);
            let Some(found) = found else {
                let offered: Vec<&str> = candidates.iter().map(|c| c.name.as_str()).collect();
                return Err(format!(
                    "the plan has `{wanted}`, this library offers {offered:?}; another machine or version cannot repeat it"
                ));
            };
            return self.settle(key, candidates.swap_remove(found));
        }
        if !terms.fallbacks && candidates.iter().all(|candidate| is_fallback(&candidate.name)) {
            return Err("the library has nothing but a reference kernel".to_owned());
        }
        let on_tiles = |candidate: &Candidate| runs_on_tiles(&candidate.name);
        if !terms.fallbacks && self.wants_tiles(step)? && !candidates.iter().any(on_tiles) {
            return Err("there is no kernel on AMX".to_owned());
        }
        if !self.request.measure || (candidates.len() == 1 && !terms.measure_maps) {
            // The library's own order: best first.
            candidates.truncate(1);
            let first = candidates.pop().ok_or("the library offers no implementation")?;
            return self.settle(key, first);
        }
        let times = self.time_candidates(step, &candidates)?;
        let mut measured: Vec<(Candidate, Duration)> = candidates.into_iter().zip(times).collect();
        // Where two are as fast, ours: it asks ahead for what it reads, and loses less where the memory is busy with what was written before.
        measured.sort_by_key(|(candidate, _)| !candidate.is_own());
        let mut best: Option<(Duration, Candidate)> = None;
        for (candidate, mut time) in measured {
            let lost = best.as_ref().is_some_and(|(shortest, _)| !is_faster(time, *shortest));
            if let (false, true, Some((layout, dtype))) = (lost, candidate.name.ends_with(REORDERED), lies) {
                time += self.time_reorder(step, &candidate, layout, *dtype)?;
            }
            if best.as_ref().is_none_or(|(shortest, _)| is_faster(time, *shortest)) {
                best = Some((time, candidate));
            }
        }
        let (time, candidate) = best.ok_or("the library offers no implementation")?;
        self.time += time * self.tiles as u32;
        self.settle(key, candidate)
    }

    /// Whether anything but AMX would be several times as slow.
    fn wants_tiles(&self, step: &Step) -> Result<bool, String> {
        Ok(self.backend.context.has_amx()
            && fills_tiles(&step.kernel)
            && self.data_type(step.inputs[0])? == DataType::Bf16)
    }

    fn settle(&mut self, key: String, candidate: Candidate) -> Result<Chosen, String> {
        self.choices.implementations.entry(key).or_insert_with(|| candidate.name.clone());
        let kernel = self.kernel(&candidate)?;
        Ok(Chosen { candidate, kernel })
    }

    /// A candidate as a step.
    pub(super) fn kernel(&self, candidate: &Candidate) -> Result<PreparedStep, String> {
        Ok(PreparedStep {
            implementation: candidate.name.clone(),
            scratch_bytes: candidate.scratch_bytes(),
            kernel: candidate.build(&self.backend.cpu.team)?,
        })
    }

    /// What each of some candidates for a step takes; the longest of all for those that were not worth a try.
    pub(super) fn time_candidates(
        &mut self,
        step: &Step,
        candidates: &[Candidate],
    ) -> Result<Vec<Duration>, String> {
        let team = &self.backend.cpu.team;
        let on_tiles = |candidate: &Candidate| !candidate.is_own() && runs_on_tiles(&candidate.name);
        let tiles = fills_tiles(&step.kernel) && candidates.iter().any(on_tiles);
        let unrolls = is_convolution(&step.kernel);
        let registers = |candidate: &Candidate| match &candidate.run {
            // A convolution as a product of a matrix that holds every pixel once for each tap.
            Run::Primitive(_) if unrolls && candidate.name.contains("gemm") => Some(0),
            Run::Primitive(_) => register_bytes(&candidate.name),
            Run::Own(_) => None,
        };
        let widest = candidates.iter().filter_map(registers).max();
        let list = |candidate: &Candidate| (candidate.is_own(), candidate.name.ends_with(REORDERED));
        let mut make = |number: usize, times: &[Option<Duration>]| {
            let candidate = &candidates[number];
            let best = times.iter().flatten().min();
            // The library's own order is best first: behind one that is far behind comes nothing better.
            let behind = |(time, before): (&Option<Duration>, &Candidate)| {
                list(before) == list(candidate)
                    && time.zip(best).is_some_and(|(time, best)| is_far_behind(time, *best))
            };
            let hopeless = || {
                tiles && !on_tiles(candidate)
                    || registers(candidate).is_some_and(|bytes| Some(bytes) < widest)
                    || candidates[..number].iter().any(|before| is_generalised(&candidate.name, &before.name))
                    || times.iter().zip(candidates).any(behind)
            };
            if is_fallback(&candidate.name) || !candidate.is_own() && hopeless() {
                return Ok(None);
            }
            let operands = candidate.operands.iter().map(|(_, desc)| desc.bytes());
            let sizes = operands.chain([candidate.scratch_bytes()]).collect();
            Ok(Some(Contender { kernel: candidate.build(team)?, sizes }))
        };
        let keys = candidates.iter().map(|candidate| {
            let mut what = format!("{:?} {}", step.kernel, bare(&candidate.name));
            for (argument, desc) in &candidate.operands {
                what += &format!(" {argument} {} {:?}", desc.bytes(), desc.layout()?);
            }
            Ok(key(&what))
        });
        let keys = keys.collect::<Result<Vec<_>, String>>()?;
        let times = self.bench.times(&self.backend.measured, &keys, &mut make)?;
        let each = candidates.iter().zip(times).map(|(candidate, time)| {
            let guess =
                || if is_fallback(&candidate.name) { self.guess_fallback(step) } else { Duration::MAX };
            time.unwrap_or_else(guess)
        });
        Ok(each.collect())
    }

    /// What a reference kernel takes. It may take seconds: that is worth a guess and no measurement.
    fn guess_fallback(&self, step: &Step) -> Duration {
        const FLOPS_PER_SECOND: f64 = 1e9;
        let operands: Vec<Value> = step.operands().map(|id| self.program.seen(id, self.tiles)).collect();
        let operands: Vec<&Value> = operands.iter().collect();
        Duration::from_secs_f64(step.kernel.flops(&operands) as f64 / FLOPS_PER_SECOND)
    }

    /// What it costs to bring weights from `layout` into the one that `candidate` takes.
    fn time_reorder(
        &mut self,
        step: &Step,
        candidate: &Candidate,
        layout: &Layout,
        dtype: DataType,
    ) -> Result<Duration, String> {
        let Some((_, weights)) = candidate.weights() else { return Ok(Duration::ZERO) };
        let layout = super::layouts::seen_as(layout, &weights.layout()?.shape)?;
        let from = self.backend.desc(&layout, dtype)?;
        let transfer = ops::transfer(&self.maker, [&from, weights], [dtype; 2])?;
        let reorder = Step { kernel: Reorder.into(), ..step.clone() };
        Ok(self.time_candidates(&reorder, &[transfer])?.into_iter().sum())
    }
}

/// The name of an implementation, whichever weights it takes.
fn bare(name: &str) -> &str {
    name.trim_end_matches(REORDERED)
}
