//! The plans of a run: each program with its kernels, in one arena; and the session that is allocated for
//! them.

use super::plan_cache::PlanCache;
use super::programs::{Programs, programs, validation_program};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::ResolvedProcess;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use stratus_base::checksum::sha256_hex;
use stratus_engine::passes::lower::refresh_copies;
use stratus_engine::passes::step_costs::LayerTimes;
use stratus_engine::plan::{Persistent, PreparedPlan};
use stratus_engine::profile::{ProgramTime, StepProfiler};
use stratus_engine::{Backend, Choices, Kernel, Plan, Program, Session, ValueId};
use stratus_graph::Graph;

/// The plans of a run: the content of `plan.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plans {
    /// Bytes allocated: persistent values, and the transient ones of the largest program.
    pub arena_bytes: usize,
    /// A whole batch.
    pub train: Plan,
    /// The smaller last batch of an epoch.
    pub tail: Option<Plan>,
    /// Validation.
    pub evaluate: Plan,
    /// Refreshes the copies of weights.
    pub refresh: Plan,
    /// The times of layers by which the network was cut into pipeline stages; empty if none were measured.
    #[serde(default, skip_serializing_if = "LayerTimes::is_empty")]
    pub layer_times: LayerTimes,
}

impl Plans {
    /// The SHA-256 of the plans in hexadecimal, for comparing runs.
    #[must_use]
    pub fn hash(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        sha256_hex([text.as_slice()])
    }

    /// Bytes of the buffers for sums that are sent to and received from other workers.
    #[must_use]
    pub fn exchange_bytes(&self) -> u64 {
        let bytes_of = |plan: &Plan| {
            let starts = plan
                .program
                .steps
                .iter()
                .filter(|s| matches!(s.kernel, Kernel::AllReduceBucket(k) if !k.waits));
            let sent: usize =
                starts.flat_map(|step| &step.inputs).map(|id| plan.placements[id.0].bytes).sum();
            sent as u64 * 3 / 2
        };
        // Buckets of both programs have the same indices, and share their memory.
        bytes_of(&self.train).max(self.tail.as_ref().map_or(0, bytes_of))
    }

    /// Bytes of the buffers for messages to and from other pipeline stages.
    #[must_use]
    pub fn message_bytes(&self) -> u64 {
        let bytes_of = |plan: &Plan| -> usize {
            let steps = plan.program.steps.iter();
            let messages = steps.filter(|step| matches!(step.kernel, Kernel::StageTransfer(_)));
            messages.flat_map(stratus_engine::Step::operands).map(|id| plan.placements[id.0].bytes).sum()
        };
        // Messages of all programs have the same indices, and share their memory.
        let plans = [Some(&self.train), self.tail.as_ref(), Some(&self.evaluate)];
        plans.into_iter().flatten().map(bytes_of).max().unwrap_or(0) as u64
    }

    /// Returns whether both plans give bit-identical results: equal, or the same kernels for another number
    /// of workers on the same parts, unless sums depend on that number.
    #[must_use]
    pub fn gives_same_bits_as(&self, other: &Self) -> bool {
        let parts = [self, other].map(|plans| plans.train.program.batch_parts);
        if self.depends_on_other_workers_than(other) {
            return false;
        }
        if parts[0] != parts[1] || parts[0] == 1 {
            return self == other;
        }
        let same = |one: &Plan, two: &Plan| {
            let known = &two.choices.implementations;
            let mut chosen = one.choices.implementations.iter();
            one.library_description == two.library_description
                && one.kernel_revision == two.kernel_revision
                && one.threads == two.threads
                && chosen.all(|(step, name)| known.get(step).is_none_or(|other| other == name))
        };
        let tails = match (&self.tail, &other.tail) {
            (Some(one), Some(two)) => same(one, two),
            (one, two) => one.is_none() && two.is_none(),
        };
        tails
            && same(&self.train, &other.train)
            && same(&self.evaluate, &other.evaluate)
            && same(&self.refresh, &other.refresh)
    }

    /// Returns whether the plans are for different numbers of workers, and sums depend on that number.
    #[must_use]
    pub fn depends_on_other_workers_than(&self, other: &Self) -> bool {
        let depends = |plans: &Self| {
            let mut kernels = plans.train.program.steps.iter().map(|step| &step.kernel);
            kernels.any(|kernel| {
                matches!(kernel, Kernel::AllReduceBucket(bucket) if !bucket.method.is_reproducible())
            })
        };
        // A worker's batch has its parts.
        self.train.program.batch != other.train.program.batch && (depends(self) || depends(other))
    }

    /// The kernels and layouts of each program.
    #[must_use]
    pub fn choices(&self) -> KernelChoices {
        KernelChoices {
            train: self.train.choices.clone(),
            tail: self.tail.as_ref().map(|tail| tail.choices.clone()),
            evaluate: self.evaluate.choices.clone(),
            refresh: self.refresh.choices.clone(),
            layer_times: self.layer_times.clone(),
        }
    }
}

/// The chosen kernels and layouts of each program of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelChoices {
    train: Choices,
    tail: Option<Choices>,
    evaluate: Choices,
    refresh: Choices,
    /// Measured times of layers, by which the network is cut into pipeline stages.
    #[serde(default)]
    pub(super) layer_times: LayerTimes,
}

/// The source of a plan's kernels.
pub enum KernelSelection<'a> {
    /// This machine's plan cache; programs that it lacks are measured and added.
    Cached,
    /// Always measured, and added to the cache.
    Remeasure,
    /// The first kernel that supports each operation, without measuring.
    FirstSupported,
    /// The kernels of earlier plans of these programs, so that results are bit-identical. Those plans may
    /// recompute other activations.
    Replay(&'a KernelChoices),
}

/// The indices of a session's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramIds {
    /// A whole batch.
    pub train: usize,
    /// The smaller last batch of an epoch.
    pub tail: Option<usize>,
    /// Validation.
    pub evaluate: usize,
    /// Refreshes the copies of weights.
    pub refresh: usize,
}

/// The planned programs of a run; nothing is allocated yet.
pub struct PlannedRun {
    prepared: Vec<PreparedPlan>,
    persistent: Persistent,
    ids: ProgramIds,
    layer_times: LayerTimes,
    /// The bytes of device memory for direct sums of buckets, if devices of this kind can sum directly.
    direct_sum_bytes: usize,
}

/// The times of a run's steps, each measured alone.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimes {
    /// A training step.
    pub train: ProgramTime,
    /// A validation step.
    pub evaluate: ProgramTime,
    /// The number of distinct kernels of the training step.
    pub kinds: usize,
    /// Bytes that were allocated for timing.
    pub scratch_bytes: usize,
}

/// A run's session, without weights yet.
pub struct CompiledRun {
    /// The session.
    pub session: Session,
    /// Its programs.
    pub ids: ProgramIds,
    /// Their plans.
    pub plans: Plans,
}

impl PlannedRun {
    /// Bytes of the session's arena.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        let transient = self.prepared.iter().map(|prepared| prepared.plan.transient_bytes).max();
        self.persistent.bytes + transient.unwrap_or(0)
    }

    /// Bytes that the session will allocate: the arena, and the memory in which GPUs of several workers sum,
    /// which is counted whether or not they can: that is known once all have joined.
    #[must_use]
    pub fn session_bytes(&self) -> usize {
        self.arena_bytes() + self.direct_sum_bytes
    }

    /// The kernels and layouts of each program.
    #[must_use]
    pub fn choices(&self) -> KernelChoices {
        let choices = |id: usize| self.prepared[id].plan.choices.clone();
        let ProgramIds { train, tail, evaluate, refresh } = self.ids;
        KernelChoices {
            train: choices(train),
            tail: tail.map(choices),
            evaluate: choices(evaluate),
            refresh: choices(refresh),
            layer_times: self.layer_times.clone(),
        }
    }

    /// Adds the whole network's choices, so that the run can resume with another number of stages.
    pub(super) fn add_whole_network_choices(&mut self, whole: &KernelChoices) {
        let ProgramIds { train, tail, evaluate, refresh } = self.ids;
        let programs = [
            (Some(train), Some(&whole.train)),
            (tail, whole.tail.as_ref()),
            (Some(evaluate), Some(&whole.evaluate)),
            (Some(refresh), Some(&whole.refresh)),
        ];
        for (id, whole) in programs {
            let (Some(id), Some(whole)) = (id, whole) else { continue };
            let choices = &mut self.prepared[id].plan.choices;
            let add = |choices: &mut BTreeMap<String, String>, whole: &BTreeMap<String, String>| {
                for (name, choice) in whole {
                    choices.entry(name.clone()).or_insert_with(|| choice.clone());
                }
            };
            add(&mut choices.layouts, &whole.layouts);
            add(&mut choices.implementations, &whole.implementations);
        }
    }

    /// The plan of every program.
    pub(crate) fn all_plans(&self) -> impl Iterator<Item = &Plan> {
        self.prepared.iter().map(|prepared| &prepared.plan)
    }

    /// The plans of training and validation.
    #[must_use]
    pub fn plans(&self) -> [&Plan; 2] {
        [self.ids.train, self.ids.evaluate].map(|id| &self.prepared[id].plan)
    }

    /// Times the steps of training and validation for the durations `budgets`, each distinct step once,
    /// without allocating a session. `cold_bytes` exceed the size of the caches.
    ///
    /// # Errors
    /// As [`StepProfiler::new`] and [`StepProfiler::measure`]. The plans are lost then.
    pub fn probe_steps(
        &mut self,
        backend: &dyn Backend,
        cold_bytes: usize,
        budgets: [Duration; 2],
    ) -> Result<StepTimes, TrainError> {
        let ProgramIds { train, evaluate, .. } = self.ids;
        let mut probe = StepProfiler::new(backend, std::mem::take(&mut self.prepared), cold_bytes)?;
        probe.measure(train, budgets[0])?;
        probe.measure(evaluate, budgets[1])?;
        let times = StepTimes {
            train: probe.time(train),
            evaluate: probe.time(evaluate),
            kinds: probe.distinct_steps(train),
            scratch_bytes: probe.scratch_bytes(),
        };
        self.prepared = probe.into_plans();
        Ok(times)
    }

    /// Measures the layers of this training step, which is that of one of `parts` parts of a batch, for the
    /// duration `budget`. Communication with other workers does not run.
    ///
    /// # Errors
    /// As [`Self::probe_steps`].
    pub(super) fn measure_layers(
        &mut self,
        backend: &dyn Backend,
        cold_bytes: usize,
        parts: usize,
        budget: Duration,
    ) -> Result<(), TrainError> {
        let train = self.ids.train;
        let mut probe = StepProfiler::new(backend, std::mem::take(&mut self.prepared), cold_bytes)?;
        probe.measure(train, budget)?;
        self.layer_times = LayerTimes::new(&probe.plan(train).program, &probe.time(train).steps, parts);
        self.prepared = probe.into_plans();
        Ok(())
    }

    /// Allocates the session, in the memory of the backend that the plans were made for.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn allocate(self, backend: &dyn Backend) -> Result<CompiledRun, TrainError> {
        let ids = self.ids;
        let session = Session::on_backend(backend, self.prepared, self.persistent)?;
        let plan = |id: usize| session.plan(id).clone();
        let plans = Plans {
            arena_bytes: session.arena_bytes(),
            train: plan(ids.train),
            tail: ids.tail.map(plan),
            evaluate: plan(ids.evaluate),
            refresh: plan(ids.refresh),
            layer_times: self.layer_times,
        };
        Ok(CompiledRun { session, ids, plans })
    }
}

/// Plans every program of a run.
///
/// # Errors
/// If no kernel can run a step, or the kernels to replay are not available here.
pub fn plan(
    programs: &Programs,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<PlannedRun, TrainError> {
    let recorded = match selection {
        KernelSelection::Replay(choices) => Some(*choices),
        _ => None,
    };
    Planner::new(device, selection, warn).plan(programs, recorded)
}

/// A session that only evaluates weights.
pub struct EvaluationSession {
    /// The session.
    pub session: Session,
    /// The evaluation program.
    pub evaluate: usize,
    /// The program that refreshes the copies of weights.
    pub refresh: usize,
}

/// Plans and allocates a session for evaluation. Replays the kernels of `recorded` plans for the same batch
/// size if they are available here, so that results are bit-identical to those of the run.
///
/// # Errors
/// As [`plan()`] and [`PlannedRun::allocate`], and if the network cannot be lowered.
pub fn compile_evaluation(
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
    recorded: Option<&Plans>,
    warn: &mut dyn FnMut(&str),
) -> Result<EvaluationSession, TrainError> {
    let program = validation_program(resolved, graph, device)?;
    let same = recorded.filter(|plans| plans.evaluate.program.batch == program.batch);
    if let Some(session) = same.and_then(|plans| replay(plans, resolved, graph, device).ok()) {
        return Ok(session);
    }
    plan_evaluation(&program, device, &KernelSelection::Cached, warn)
}

/// Plans and allocates a session for an evaluation program.
pub(super) fn plan_evaluation(
    program: &Program,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<EvaluationSession, TrainError> {
    let mut planner = Planner::new(device, selection, warn);
    let evaluate = planner.prepare(program, None, None)?;
    let prepared = vec![evaluate, planner.prepare(&refresh_copies(program)?, None, None)?];
    let session = Session::on_backend(device.backend.as_ref(), prepared, planner.persistent)?;
    Ok(EvaluationSession { session, evaluate: 0, refresh: 1 })
}

/// Plans and allocates a session for evaluation with the kernels and layouts of a run's plans. The layouts of
/// weights follow from training, so its program is planned too, without allocating it.
fn replay(
    plans: &Plans,
    resolved: &ResolvedProcess,
    graph: &Graph,
    device: &OpenDevice,
) -> Result<EvaluationSession, TrainError> {
    let Programs { train, evaluate, refresh, .. } = programs(resolved, graph, device)?;
    let backend = device.backend.as_ref();
    let mut persistent = Persistent::default();
    let mut prepare = |program: &Program, plan: &Plan| {
        let choices = with_recomputed(program, &plan.choices);
        Plan::prepare(backend, program, choices, false, &mut persistent)
    };
    drop(prepare(&train, &plans.train)?);
    let prepared = vec![prepare(&evaluate, &plans.evaluate)?, prepare(&refresh, &plans.refresh)?];
    let session = Session::on_backend(backend, prepared, persistent)?;
    Ok(EvaluationSession { session, evaluate: 0, refresh: 1 })
}

/// Plans programs one after the other with shared persistent values.
struct Planner<'a> {
    backend: &'a dyn Backend,
    cache: PlanCache,
    selection: &'a KernelSelection<'a>,
    persistent: Persistent,
    warn: &'a mut dyn FnMut(&str),
}

impl<'a> Planner<'a> {
    fn new(
        device: &'a OpenDevice,
        selection: &'a KernelSelection<'a>,
        warn: &'a mut dyn FnMut(&str),
    ) -> Self {
        let (backend, cache) = (device.backend.as_ref(), PlanCache::for_this_machine());
        if matches!(selection, KernelSelection::Remeasure) {
            backend.clear_timings();
        }
        Self { backend, cache, selection, persistent: Persistent::default(), warn }
    }

    /// Plans every program of a run; `recorded` are the choices to replay.
    fn plan(
        mut self,
        programs: &Programs,
        recorded: Option<&KernelChoices>,
    ) -> Result<PlannedRun, TrainError> {
        let train = self.prepare(&programs.train, recorded.map(|choices| &choices.train), None)?;
        let tail = match &programs.tail {
            Some(tail) => {
                let recorded = recorded.and_then(|choices| choices.tail.as_ref());
                // It runs once per epoch, so measuring it separately is not worth the time.
                let reuses = self.backend.reuses_choices_across_batch_sizes();
                Some(self.prepare(tail, recorded, reuses.then_some(&train.plan.choices))?)
            }
            None => None,
        };
        let evaluate = self.prepare(&programs.evaluate, recorded.map(|choices| &choices.evaluate), None)?;
        let refresh = self.prepare(&programs.refresh, recorded.map(|choices| &choices.refresh), None)?;
        let first = usize::from(tail.is_some());
        let ids = ProgramIds {
            train: 0,
            tail: tail.is_some().then_some(1),
            evaluate: first + 1,
            refresh: first + 2,
        };
        let prepared: Vec<PreparedPlan> =
            [Some(train), tail, Some(evaluate), Some(refresh)].into_iter().flatten().collect();
        let layer_times = recorded.map(|choices| choices.layer_times.clone()).unwrap_or_default();
        let direct_sum_bytes = direct_sum_bytes(self.backend, &prepared);
        Ok(PlannedRun { prepared, persistent: self.persistent, ids, layer_times, direct_sum_bytes })
    }

    /// Plans a program; `recorded` are the choices to replay, and `similar` those of a program for another
    /// batch size, which are reused instead of measuring.
    fn prepare(
        &mut self,
        program: &Program,
        recorded: Option<&Choices>,
        similar: Option<&Choices>,
    ) -> Result<PreparedPlan, TrainError> {
        if let KernelSelection::Replay(_) = self.selection
            && let Some(choices) = recorded
        {
            let choices = with_recomputed(program, choices);
            return Ok(Plan::prepare(self.backend, program, choices, false, &mut self.persistent)?);
        }
        let cached = match self.selection {
            KernelSelection::Cached => self.cache.load(self.backend, program),
            KernelSelection::Replay(_) | KernelSelection::Remeasure | KernelSelection::FirstSupported => None,
        };
        for choices in similar.cloned().into_iter().chain(cached) {
            // Unusable choices are measured again.
            if let Ok(plan) = Plan::prepare(self.backend, program, choices, false, &mut self.persistent) {
                return Ok(plan);
            }
        }
        let measure = !matches!(self.selection, KernelSelection::FirstSupported);
        let before = self.persistent.clone();
        let plan = Plan::prepare(self.backend, program, Choices::default(), measure, &mut self.persistent)?;
        // Another process may have cached the program in the meantime. Later runs use its choices, so using
        // them here too makes the runs bit-identical.
        if let KernelSelection::Cached = self.selection
            && let Some(choices) = self.cache.load(self.backend, program)
            && choices != plan.plan.choices
        {
            let mut persistent = before;
            if let Ok(theirs) = Plan::prepare(self.backend, program, choices, false, &mut persistent) {
                self.persistent = persistent;
                return Ok(theirs);
            }
        }
        if measure && let Err(problem) = self.cache.store(self.backend, program, &plan.plan.choices) {
            (self.warn)(&problem);
        }
        Ok(plan)
    }
}

/// The bytes of device memory for direct sums of the buckets of all plans.
fn direct_sum_bytes(backend: &dyn Backend, plans: &[PreparedPlan]) -> usize {
    let buckets = plans.iter().map(|prepared| prepared.plan.largest_bucket_bytes());
    backend.direct_sum_bytes(buckets.max().unwrap_or(0))
}

/// Completes choices for a program that recomputes activations, which have the layout of the original.
fn with_recomputed(program: &Program, choices: &Choices) -> Choices {
    let mut choices = choices.clone();
    for (id, value) in program.values.iter().enumerate() {
        let Some(first) = program.recomputed_from(ValueId(id)) else { continue };
        if let Some(layout) = choices.layouts.get(&program.value(first).name).cloned() {
            choices.layouts.insert(value.name.clone(), layout);
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use stratus_engine::passes::lower::lower;
    use stratus_engine::program::Mode;
    use stratus_engine::reference::ReferenceBackend;
    use stratus_engine::{EngineError, Precision, PrepareRequest, PreparedProgram};

    /// A backend that records the batch sizes of the programs that it measures.
    struct RecordingBackend<'a> {
        reuses: bool,
        measured: &'a Mutex<Vec<usize>>,
    }

    impl Backend for RecordingBackend<'_> {
        fn name(&self) -> &'static str {
            "measures"
        }
        fn describe(&self) -> String {
            "records measurements".to_owned()
        }
        fn revision(&self) -> &'static str {
            "1"
        }
        fn threads(&self) -> usize {
            1
        }
        fn precisions(&self) -> Vec<Precision> {
            ReferenceBackend.precisions()
        }
        fn reuses_choices_across_batch_sizes(&self) -> bool {
            self.reuses
        }
        fn prepare(
            &self,
            program: &Program,
            request: &PrepareRequest,
        ) -> Result<PreparedProgram, EngineError> {
            if request.measure {
                self.measured.lock().unwrap().push(program.batch);
            }
            ReferenceBackend.prepare(program, request)
        }
    }

    /// A backend that chooses `own` unless choices are given. While it measures, another process caches
    /// `others`.
    struct RacingBackend {
        cache: PlanCache,
    }

    impl RacingBackend {
        fn choice(name: &str) -> Choices {
            Choices { implementations: [("step".to_owned(), name.to_owned())].into(), ..Choices::default() }
        }
    }

    impl Backend for RacingBackend {
        fn name(&self) -> &'static str {
            "raced"
        }
        fn describe(&self) -> String {
            "with another process".to_owned()
        }
        fn revision(&self) -> &'static str {
            "1"
        }
        fn threads(&self) -> usize {
            1
        }
        fn precisions(&self) -> Vec<Precision> {
            ReferenceBackend.precisions()
        }
        fn prepare(
            &self,
            program: &Program,
            request: &PrepareRequest,
        ) -> Result<PreparedProgram, EngineError> {
            let choices = if request.measure {
                self.cache.store(self, program, &Self::choice("others")).unwrap();
                Self::choice("own")
            } else {
                request.choices.clone()
            };
            Ok(PreparedProgram { choices, ..ReferenceBackend.prepare(program, request)? })
        }
    }

    /// Two processes that measure a program at the same time use the same choices as later ones.
    #[test]
    fn uses_choices_cached_by_another_process() {
        let network = stratus_graph::zoo::find("digits").unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let program = lower(&graph, Mode::Evaluate, Precision::F32, 2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let backend = RacingBackend { cache: PlanCache::in_folder(folder.path()) };
        let choices = |selection: &KernelSelection<'_>| {
            let mut planner = Planner {
                backend: &backend,
                cache: PlanCache::in_folder(folder.path()),
                selection,
                persistent: Persistent::default(),
                warn: &mut |text| panic!("{text}"),
            };
            planner.prepare(&program, None, None).unwrap().plan.choices
        };
        assert_eq!(choices(&KernelSelection::Cached), RacingBackend::choice("others"));
        assert_eq!(choices(&KernelSelection::Cached), RacingBackend::choice("others"));
        // Measuring again replaces the cached choices.
        assert_eq!(choices(&KernelSelection::Remeasure), RacingBackend::choice("own"));
        assert_eq!(choices(&KernelSelection::Cached), RacingBackend::choice("own"));
    }

    /// The last batch of an epoch reuses the kernels of the others, if the backend supports that.
    #[test]
    fn measures_a_smaller_batch_only_if_kernels_depend_on_the_batch_size() {
        let network = stratus_graph::zoo::find("digits").unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let lowered = |mode, batch| lower(&graph, mode, Precision::F32, batch).unwrap();
        let train = lowered(Mode::Train, 8);
        let programs = Programs {
            tail: Some(lowered(Mode::Train, 3)),
            evaluate: lowered(Mode::Evaluate, 5),
            refresh: refresh_copies(&train).unwrap(),
            train,
        };
        for (reuses, expected) in [(true, [8, 5, 8].as_slice()), (false, &[8, 3, 5, 8])] {
            let measured: &'static Mutex<Vec<usize>> = Box::leak(Box::default());
            let device = OpenDevice::new(Box::new(RecordingBackend { reuses, measured }));
            let persistent = Persistent::default();
            let cache = PlanCache::disabled();
            let planner = Planner {
                backend: device.backend.as_ref(),
                cache,
                selection: &KernelSelection::Cached,
                persistent,
                warn: &mut |_| {},
            };
            planner.plan(&programs, None).unwrap();
            assert_eq!(*measured.lock().unwrap(), expected);
        }
    }
}
