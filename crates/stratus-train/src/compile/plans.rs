//! The plans of a run: each program with its kernels, over one arena; and the session that is allocated for
//! them.

use super::plan_cache::PlanCache;
use super::programs::{Programs, evaluation_program, programs};
use crate::TrainError;
use crate::device::OpenDevice;
use crate::resolve::Resolved;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use stratus_base::checksum::sha256_hex;
use stratus_engine::passes::lower::refresh;
use stratus_engine::plan::{Persistent, PreparedPlan};
use stratus_engine::probe::{Probe, ProgramTime};
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
    /// Brings copies of weights up to date.
    pub refresh: Plan,
}

impl Plans {
    /// A SHA-256 in hexadecimal by which the plans of two runs are compared.
    #[must_use]
    pub fn hash(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        sha256_hex([text.as_slice()])
    }

    /// Bytes in which sums travel to other workers, and into which theirs are received.
    #[must_use]
    pub fn exchange_bytes(&self) -> u64 {
        let of = |plan: &Plan| {
            let starts =
                plan.program.steps.iter().filter(|s| matches!(s.kernel, Kernel::ExchangeSums(k) if !k.waits));
            let sent: usize =
                starts.flat_map(|step| &step.inputs).map(|id| plan.placements[id.0].bytes).sum();
            sent as u64 * 3 / 2
        };
        // Buckets of both programs have the same numbers, and the same memory.
        of(&self.train).max(self.tail.as_ref().map_or(0, of))
    }

    /// Whether these plans give the bits of others: they are the same, or for another number of workers that
    /// have parts of the same batch, each step by the same kernel.
    #[must_use]
    pub fn has_kernels_of(&self, other: &Self) -> bool {
        let parts = [self, other].map(|plans| plans.train.program.parts);
        if parts[0] != parts[1] || parts[0] == 1 {
            return self == other;
        }
        let same = |one: &Plan, two: &Plan| {
            let known = &two.choices.implementations;
            let mut chosen = one.choices.implementations.iter();
            one.library == two.library
                && one.kernels == two.kernels
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

    /// The kernels and layouts of each program.
    #[must_use]
    pub fn choices(&self) -> KernelChoices {
        KernelChoices {
            train: self.train.choices.clone(),
            tail: self.tail.as_ref().map(|tail| tail.choices.clone()),
            evaluate: self.evaluate.choices.clone(),
            refresh: self.refresh.choices.clone(),
        }
    }
}

/// The kernels and layouts that were measured to be the fastest, per program of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelChoices {
    train: Choices,
    tail: Option<Choices>,
    evaluate: Choices,
    refresh: Choices,
}

/// Where a plan's kernels come from.
pub enum KernelSelection<'a> {
    /// This machine's cache of plans; what is not there is measured and put there.
    Cached,
    /// Measured in any case, and put into the cache.
    Remeasure,
    /// The first that can do each operation, as no time is to be spent on measuring.
    Unmeasured,
    /// The kernels of earlier plans of these programs, so that the results have the same bits. Those plans
    /// may have recomputed other activations, or none.
    Repeat(&'a KernelChoices),
}

/// Which program of the session is which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramIds {
    /// A whole batch.
    pub train: usize,
    /// The smaller last batch of an epoch.
    pub tail: Option<usize>,
    /// Validation.
    pub evaluate: usize,
    /// Brings copies of weights up to date.
    pub refresh: usize,
}

/// A run's programs, planned; nothing is allocated yet.
pub struct PlannedRun {
    prepared: Vec<PreparedPlan>,
    persistent: Persistent,
    ids: ProgramIds,
}

/// What the steps of a run take, each timed alone.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimes {
    /// A training step.
    pub train: ProgramTime,
    /// A step of validation.
    pub evaluate: ProgramTime,
    /// How many kernels of the training step differ.
    pub kinds: usize,
    /// Bytes that timing took.
    pub scratch_bytes: usize,
}

/// A run's session, ready to be given weights.
pub struct CompiledRun {
    /// The session.
    pub session: Session,
    /// Its programs.
    pub ids: ProgramIds,
    /// Their plans.
    pub plans: Plans,
}

impl PlannedRun {
    /// Bytes that the session will allocate.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        let transient = self.prepared.iter().map(|prepared| prepared.plan.transient_bytes).max();
        self.persistent.bytes + transient.unwrap_or(0)
    }

    /// The kernels and layouts of each program.
    #[must_use]
    pub fn choices(&self) -> KernelChoices {
        let of = |id: usize| self.prepared[id].plan.choices.clone();
        let ProgramIds { train, tail, evaluate, refresh } = self.ids;
        KernelChoices { train: of(train), tail: tail.map(of), evaluate: of(evaluate), refresh: of(refresh) }
    }

    /// Notes the choices of the whole network, of which this is a stage: the run may go on in others.
    pub(super) fn keep_choices(&mut self, whole: &KernelChoices) {
        let ProgramIds { train, tail, evaluate, refresh } = self.ids;
        let kept = [
            (Some(train), Some(&whole.train)),
            (tail, whole.tail.as_ref()),
            (Some(evaluate), Some(&whole.evaluate)),
            (Some(refresh), Some(&whole.refresh)),
        ];
        for (id, whole) in kept {
            let (Some(id), Some(whole)) = (id, whole) else { continue };
            let own = &mut self.prepared[id].plan.choices;
            let add = |own: &mut BTreeMap<String, String>, whole: &BTreeMap<String, String>| {
                for (name, choice) in whole {
                    own.entry(name.clone()).or_insert_with(|| choice.clone());
                }
            };
            add(&mut own.layouts, &whole.layouts);
            add(&mut own.implementations, &whole.implementations);
        }
    }

    /// The plans of training and validation.
    #[must_use]
    pub fn plans(&self) -> [&Plan; 2] {
        [self.ids.train, self.ids.evaluate].map(|id| &self.prepared[id].plan)
    }

    /// Times the steps of training and of validation without the memory of a session, for as long as
    /// `budgets` says, and each kind of step once. Caches hold less than `cold_bytes`.
    ///
    /// # Errors
    /// As [`Probe::new`] and [`Probe::measure`]. There are no plans then any more.
    pub fn timed(
        &mut self,
        backend: &dyn Backend,
        cold_bytes: usize,
        budgets: [Duration; 2],
    ) -> Result<StepTimes, TrainError> {
        let ProgramIds { train, evaluate, .. } = self.ids;
        let mut probe = Probe::new(backend, std::mem::take(&mut self.prepared), cold_bytes)?;
        probe.measure(train, budgets[0])?;
        probe.measure(evaluate, budgets[1])?;
        let times = StepTimes {
            train: probe.time(train),
            evaluate: probe.time(evaluate),
            kinds: probe.kinds(train),
            scratch_bytes: probe.scratch_bytes(),
        };
        self.prepared = probe.into_plans();
        Ok(times)
    }

    /// Allocates the session, in the memory of the backend that the plans were made for.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn allocate(self, backend: &dyn Backend) -> Result<CompiledRun, TrainError> {
        let ids = self.ids;
        let session = Session::of(backend, self.prepared, self.persistent)?;
        let plan = |id: usize| session.plan(id).clone();
        let plans = Plans {
            arena_bytes: session.arena_bytes(),
            train: plan(ids.train),
            tail: ids.tail.map(plan),
            evaluate: plan(ids.evaluate),
            refresh: plan(ids.refresh),
        };
        Ok(CompiledRun { session, ids, plans })
    }
}

/// Plans every program of a run.
///
/// # Errors
/// If no kernel can run a step, or the kernels to repeat are not to be had here.
pub fn plan(
    programs: &Programs,
    device: &OpenDevice,
    selection: &KernelSelection<'_>,
    warn: &mut dyn FnMut(&str),
) -> Result<PlannedRun, TrainError> {
    let recorded = match selection {
        KernelSelection::Repeat(choices) => Some(*choices),
        _ => None,
    };
    Planner::new(device, selection, warn).plan(programs, recorded)
}

/// A session that measures weights and trains nothing.
pub struct EvaluationSession {
    /// The session.
    pub session: Session,
    /// The program that measures.
    pub evaluate: usize,
    /// The program that brings copies of weights up to date.
    pub refresh: usize,
}

/// Plans and allocates what measuring needs. Where `recorded` plans are of the same batch, their kernels are
/// repeated if they are to be had here: the results then have the bits that the run saw.
///
/// # Errors
/// As [`plan()`] and [`PlannedRun::allocate`], and if the network cannot be lowered.
pub fn compile_evaluation(
    resolved: &Resolved,
    graph: &Graph,
    device: &OpenDevice,
    recorded: Option<&Plans>,
    warn: &mut dyn FnMut(&str),
) -> Result<EvaluationSession, TrainError> {
    let program = evaluation_program(resolved, graph, device)?;
    let same = recorded.filter(|plans| plans.evaluate.program.batch == program.batch);
    if let Some(session) = same.and_then(|plans| repeated(plans, resolved, graph, device).ok()) {
        return Ok(session);
    }
    let mut planner = Planner::new(device, &KernelSelection::Cached, warn);
    let evaluate = planner.prepare(&program, None, None)?;
    let prepared = vec![evaluate, planner.prepare(&refresh(&program)?, None, None)?];
    let session = Session::of(device.backend.as_ref(), prepared, planner.persistent)?;
    Ok(EvaluationSession { session, evaluate: 0, refresh: 1 })
}

/// What measuring needs, with the kernels and layouts of a run's plans. Layouts of weights are training's,
/// so that its program is planned too; no memory is taken for it.
fn repeated(
    plans: &Plans,
    resolved: &Resolved,
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
    let session = Session::of(backend, prepared, persistent)?;
    Ok(EvaluationSession { session, evaluate: 0, refresh: 1 })
}

/// Plans one program after the other over the same persistent values.
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
        let (backend, cache) = (device.backend.as_ref(), PlanCache::of_this_machine());
        if matches!(selection, KernelSelection::Remeasure) {
            backend.forget_measured();
        }
        Self { backend, cache, selection, persistent: Persistent::default(), warn }
    }

    /// Plans every program of a run; `recorded` are the choices to repeat.
    fn plan(
        mut self,
        programs: &Programs,
        recorded: Option<&KernelChoices>,
    ) -> Result<PlannedRun, TrainError> {
        let train = self.prepare(&programs.train, recorded.map(|choices| &choices.train), None)?;
        let tail = match &programs.tail {
            Some(tail) => {
                let recorded = recorded.and_then(|choices| choices.tail.as_ref());
                // It runs once an epoch.
                let repeats = self.backend.repeats_choices_for_other_batches();
                Some(self.prepare(tail, recorded, repeats.then_some(&train.plan.choices))?)
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
        let prepared = [Some(train), tail, Some(evaluate), Some(refresh)].into_iter().flatten().collect();
        Ok(PlannedRun { prepared, persistent: self.persistent, ids })
    }

    /// Plans a program; `recorded` are the choices to repeat, if any are recorded for it, and `similar` those
    /// of a program for another batch, which are better than measuring.
    fn prepare(
        &mut self,
        program: &Program,
        recorded: Option<&Choices>,
        similar: Option<&Choices>,
    ) -> Result<PreparedPlan, TrainError> {
        if let KernelSelection::Repeat(_) = self.selection
            && let Some(choices) = recorded
        {
            let choices = with_recomputed(program, choices);
            return Ok(Plan::prepare(self.backend, program, choices, false, &mut self.persistent)?);
        }
        let cached = match self.selection {
            KernelSelection::Cached => self.cache.load(self.backend, program),
            KernelSelection::Repeat(_) | KernelSelection::Remeasure | KernelSelection::Unmeasured => None,
        };
        for choices in similar.cloned().into_iter().chain(cached) {
            // What cannot be used is measured again.
            if let Ok(plan) = Plan::prepare(self.backend, program, choices, false, &mut self.persistent) {
                return Ok(plan);
            }
        }
        let measure = !matches!(self.selection, KernelSelection::Unmeasured);
        let before = self.persistent.clone();
        let plan = Plan::prepare(self.backend, program, Choices::default(), measure, &mut self.persistent)?;
        // Another process may have measured the program meanwhile. What it has kept is what later runs will
        // have: with the same kernels this one has the same bits.
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

/// Choices for a program that may recompute activations: a recomputed one has the layout of the first.
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
    use stratus_engine::{EngineError, Precision, PrepareRequest, Prepared};

    /// A backend that notes the batches of programs which it is asked to measure.
    struct Measures<'a> {
        repeats: bool,
        measured: &'a Mutex<Vec<usize>>,
    }

    impl Backend for Measures<'_> {
        fn name(&self) -> &'static str {
            "measures"
        }
        fn describe(&self) -> String {
            "what it is asked to measure".to_owned()
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
        fn repeats_choices_for_other_batches(&self) -> bool {
            self.repeats
        }
        fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<Prepared, EngineError> {
            if request.measure {
                self.measured.lock().unwrap().push(program.batch);
            }
            ReferenceBackend.prepare(program, request)
        }
    }

    /// A backend that chooses `own`, unless choices are given; while it measures, another process ends with
    /// `others` and keeps them.
    struct Raced {
        cache: PlanCache,
    }

    impl Raced {
        fn choice(name: &str) -> Choices {
            Choices { implementations: [("step".to_owned(), name.to_owned())].into(), ..Choices::default() }
        }
    }

    impl Backend for Raced {
        fn name(&self) -> &'static str {
            "raced"
        }
        fn describe(&self) -> String {
            "beside another process".to_owned()
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
        fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<Prepared, EngineError> {
            let choices = if request.measure {
                self.cache.store(self, program, &Self::choice("others")).unwrap();
                Self::choice("own")
            } else {
                request.choices.clone()
            };
            Ok(Prepared { choices, ..ReferenceBackend.prepare(program, request)? })
        }
    }

    /// Of two processes that measure a program at once, both have what later ones will have.
    #[test]
    fn what_another_process_has_kept_meanwhile_is_taken() {
        let network = stratus_graph::zoo::find("digits").unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let program = lower(&graph, Mode::Evaluate, Precision::F32, 2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let backend = Raced { cache: PlanCache::within(folder.path()) };
        let choices = |selection: &KernelSelection<'_>| {
            let mut planner = Planner {
                backend: &backend,
                cache: PlanCache::within(folder.path()),
                selection,
                persistent: Persistent::default(),
                warn: &mut |text| panic!("{text}"),
            };
            planner.prepare(&program, None, None).unwrap().plan.choices
        };
        assert_eq!(choices(&KernelSelection::Cached), Raced::choice("others"));
        assert_eq!(choices(&KernelSelection::Cached), Raced::choice("others"));
        // Unless measuring anew was asked for: that is kept then.
        assert_eq!(choices(&KernelSelection::Remeasure), Raced::choice("own"));
        assert_eq!(choices(&KernelSelection::Cached), Raced::choice("own"));
    }

    /// The last batch of an epoch takes the kernels of the others, where their names hold for every batch.
    #[test]
    fn a_smaller_batch_is_measured_only_where_its_kernels_may_be_others() {
        let network = stratus_graph::zoo::find("digits").unwrap();
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let lowered = |mode, batch| lower(&graph, mode, Precision::F32, batch).unwrap();
        let train = lowered(Mode::Train, 8);
        let programs = Programs {
            tail: Some(lowered(Mode::Train, 3)),
            evaluate: lowered(Mode::Evaluate, 5),
            refresh: refresh(&train).unwrap(),
            train,
        };
        for (repeats, expected) in [(true, [8, 5, 8].as_slice()), (false, &[8, 3, 5, 8])] {
            let measured: &'static Mutex<Vec<usize>> = Box::leak(Box::default());
            let device = OpenDevice::new(Box::new(Measures { repeats, measured }));
            let persistent = Persistent::default();
            let cache = PlanCache::nowhere();
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
