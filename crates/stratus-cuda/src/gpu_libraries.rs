//! cuDNN and cuBLAS as calls of steps, and the choice among implementations of the same step.

use crate::ffi::cublas::{Cublas, Product};
use crate::ffi::cudnn;
use crate::ffi::cudnn::{ConvolutionPlan, Cudnn, PREFIX, Problem};
use crate::ffi::driver::{self, Event, Gpu, Memory};
use crate::measured::Measured;
use crate::processor::{AMPERE, Argument, Call, Implementation};
use crate::sources::side_by_side;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::backend::Operands;
use stratus_engine::{Phases, Tile};

/// A convolution by cuDNN.
pub(crate) struct ConvolutionCall {
    pub plan: Arc<ConvolutionPlan>,
    /// Input, weight, output, or their gradients.
    pub operands: [Argument; 3],
    /// The workspace's first byte in the scratch.
    pub workspace: usize,
}

impl Call for ConvolutionCall {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let workspace = match self.plan.workspace {
            0 => 0,
            _ => Argument::Scratch(self.workspace).word(operands, scratch),
        };
        self.plan.enqueue(self.operands.map(|argument| argument.word(operands, scratch)), workspace)
    }
}

/// A matrix product by cuBLAS.
pub(crate) struct MatmulCall {
    pub cublas: Arc<Cublas>,
    pub product: Product,
    /// A, B and the result C.
    pub operands: [Argument; 3],
}

impl Call for MatmulCall {
    fn enqueue(&mut self, operands: &Operands<'_>, scratch: usize) -> Result<(), String> {
        let [a, b, c] = self.operands.map(|argument| argument.word(operands, scratch));
        self.cublas.multiply(&self.product, a, b, c)
    }
}

/// Which of several implementations a step gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ImplementationChoice<'a> {
    /// The one of this name.
    Named(&'a str),
    /// The fastest, by measuring.
    Fastest,
    /// The first of the list.
    First,
}

/// A convolution, and the name of the implementation that is asked for, if any is.
pub(crate) type Asked = (Problem, Option<String>);

/// The most configurations of cuDNN that are measured, and the most bytes of workspace of each.
const PLANS: usize = 6;
/// The same where native kernels are many times as fast as all of cuDNN's: docs/benchmarks/gpu.md.
const PLANS_BESIDE_NATIVE: usize = 1;
const WORKSPACE: usize = 1 << 30;

/// The most threads that ask cuDNN at the same time, each by a handle of its own.
const PLANNERS: usize = 16;

/// The libraries of a GPU.
pub(crate) struct GpuLibraries {
    pub gpu: Arc<Gpu>,
    pub cudnn: Arc<Cudnn>,
    pub cublas: Arc<Cublas>,
    /// Whether factors in f32 may be rounded to TF32.
    pub tf32: bool,
    pub phases: Arc<Phases>,
    /// The fastest implementation of each convolution measured so far.
    measured: Measured,
    /// Plans of cuDNN by what was asked for, the best by its estimate first. Equal convolutions share one.
    plans: Mutex<HashMap<Asked, Vec<Arc<ConvolutionPlan>>>>,
    /// Handles of threads that ask cuDNN, while none does.
    planners: Mutex<Vec<Arc<Cudnn>>>,
    /// Operands and scratch for measuring, reused from problem to problem.
    measuring_memory: Mutex<Option<Memory>>,
}

/// Every operand begins at a multiple of this many bytes while implementations are measured.
const ALIGNMENT: usize = 256;
/// Timed runs of each implementation; the shortest counts.
const TIMED_RUNS: usize = 3;

/// Whether a candidate whose run took `time` nanoseconds need not run again. `fastest` is the shortest run of
/// all so far. The first run of a candidate may have loaded its kernel, which takes milliseconds; other runs
/// differ by a few percent.
fn is_hopeless(run: usize, time: u64, fastest: u64) -> bool {
    const LOADING: u64 = 20_000_000;
    match run {
        0 => time.saturating_sub(LOADING) / 2 > fastest,
        _ => time - time / 5 > fastest,
    }
}

impl GpuLibraries {
    /// Opens cuDNN and cuBLAS on a GPU. What is measured is kept in the folder `cache`.
    ///
    /// # Errors
    /// A library's own message.
    pub fn new(
        gpu: &Arc<Gpu>,
        tf32: bool,
        cache: Option<&Path>,
        phases: &Arc<Phases>,
    ) -> Result<Self, String> {
        // Each takes tenths of a second.
        let (cudnn, cublas) = std::thread::scope(|scope| {
            let cublas = scope.spawn(|| Cublas::new(gpu));
            (Cudnn::new(gpu), cublas.join())
        });
        let (cudnn, cublas) = (cudnn?, cublas.map_err(|_| "opening cuBLAS has failed".to_owned())??);
        let (cuda, _) = driver::driver()?;
        let versions = [cuda, cublas.version()?, cudnn::version(), env!("STRATUS_KERNELS").to_owned()];
        let machine = format!("{} {:?} {}", gpu.name, gpu.capability, versions.join(" "));
        Ok(Self {
            gpu: Arc::clone(gpu),
            cudnn: Arc::new(cudnn),
            cublas: Arc::new(cublas),
            tf32,
            phases: Arc::clone(phases),
            measured: Measured::open(cache, &machine),
            plans: Mutex::default(),
            planners: Mutex::default(),
            measuring_memory: Mutex::default(),
        })
    }

    /// The name of the fastest implementation, where this problem was measured before.
    fn cached(&self, problem: &Problem) -> Option<String> {
        self.measured.get(problem)
    }

    /// The name that [`Self::choose`] will arrive at, where that is certain beforehand.
    pub fn chosen_name(&self, problem: &Problem, choice: ImplementationChoice<'_>) -> Option<String> {
        match choice {
            ImplementationChoice::Named(name) => Some(name.to_owned()),
            ImplementationChoice::Fastest => self.cached(problem),
            ImplementationChoice::First => None,
        }
    }

    /// cuDNN's plans for a convolution; where a name is given, only the one of that name. None where it has
    /// no plan: a native kernel computes it then, and the library's error would help nobody.
    pub fn plans(&self, problem: &Problem, only: Option<&str>) -> Vec<Arc<ConvolutionPlan>> {
        let asked = (*problem, only.map(str::to_owned));
        let known = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let known_plans = known().get(&asked).cloned();
        known_plans.unwrap_or_else(|| {
            let ask = || self.ask(&self.cudnn, &asked);
            let plans = self.phases.during("asking cuDNN for plans", ask);
            known().insert(asked.clone(), plans.clone());
            plans
        })
    }

    fn ask(&self, cudnn: &Arc<Cudnn>, (problem, only): &Asked) -> Vec<Arc<ConvolutionPlan>> {
        let [major, minor] = self.gpu.capability;
        let has_native = 10 * major + minor >= AMPERE && problem.has_fast_native();
        let most = if has_native { PLANS_BESIDE_NATIVE } else { PLANS };
        let plans = cudnn.plans(problem, most, WORKSPACE, only.as_deref()).unwrap_or_default();
        plans.into_iter().map(Arc::new).collect()
    }

    /// Asks cuDNN for plans side by side, as far as it was not asked before.
    pub fn plan_ahead(&self, convolutions: Vec<Asked>) {
        let known = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let planners = || self.planners.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked: Vec<Asked> = Vec::new();
        for (problem, requested) in convolutions {
            let name = requested.or_else(|| self.cached(&problem));
            let one = (problem, name);
            let is_cudnn = one.1.as_ref().is_none_or(|name| name.starts_with(PREFIX));
            if is_cudnn && !known().contains_key(&one) && !asked.contains(&one) {
                asked.push(one);
            }
        }
        let ask = |one: &Asked| {
            let idle = planners().pop();
            // What cannot be asked now is asked when it is needed.
            let Some(cudnn) = idle.or_else(|| Cudnn::new(&self.gpu).ok().map(Arc::new)) else { return };
            let plans = self.ask(&cudnn, one);
            known().insert(one.clone(), plans);
            planners().push(cudnn);
        };
        self.phases.during("asking cuDNN for plans", || side_by_side(&asked, PLANNERS, ask));
        planners().clear();
    }

    /// Forgets the plans of a convolution that were measured, but for the one that was chosen.
    fn keep_plan(&self, problem: &Problem, name: &str) {
        let mut known = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let measured = known.remove(&(*problem, None)).unwrap_or_default();
        let chosen = measured.into_iter().filter(|plan| plan.name == name).collect();
        known.insert((*problem, Some(name.to_owned())), chosen);
    }

    /// Chooses among `candidates`. `operands` are pairs of an operand's position and its bytes.
    ///
    /// # Errors
    /// Where no candidate has the name asked for, or none runs.
    pub fn choose(
        &self,
        problem: &Problem,
        mut candidates: Vec<Implementation>,
        operands: impl Iterator<Item = (usize, usize)>,
        choice: ImplementationChoice<'_>,
    ) -> Result<Implementation, String> {
        let named = |name: &str| candidates.iter().position(|candidate| candidate.name == name);
        let position = match choice {
            ImplementationChoice::Named(name) => {
                named(name).ok_or_else(|| format!("it has no implementation `{name}`"))?
            }
            ImplementationChoice::First => 0,
            ImplementationChoice::Fastest => match self.cached(problem).and_then(|name| named(&name)) {
                Some(position) => position,
                None => {
                    let measure = || self.fastest(&mut candidates, operands);
                    let fastest = self.phases.during("measuring kernels", measure)?;
                    self.measured.set(problem, &candidates[fastest].name);
                    self.keep_plan(problem, &candidates[fastest].name);
                    fastest
                }
            },
        };
        Ok(candidates.swap_remove(position))
    }

    /// Has everything measured again.
    pub fn forget_measured(&self) {
        self.measured.forget();
    }

    /// Keeps what was measured, and frees the memory that it was measured on.
    pub fn end_measuring(&self) {
        self.measured.save();
        *self.measuring_memory.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn fastest(
        &self,
        candidates: &mut [Implementation],
        operands: impl Iterator<Item = (usize, usize)>,
    ) -> Result<usize, String> {
        if candidates.len() == 1 {
            return Ok(0);
        }
        let operands: Vec<(usize, usize)> = operands.collect();
        let scratch = operands.iter().map(|(position, _)| position + 1).max().unwrap_or(0);
        let mut addresses = Operands::new(Tile::WHOLE);
        let mut bytes = 0;
        for &(position, size) in &operands {
            addresses.set_address(position, bytes as u64);
            bytes += size.next_multiple_of(ALIGNMENT);
        }
        addresses.set_address(scratch, bytes as u64);
        bytes += candidates.iter().map(|candidate| candidate.scratch_bytes).max().unwrap_or(0);
        let mut memory = self.measuring_memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.as_ref().is_none_or(|memory| memory.bytes() < bytes) {
            *memory = None;
            *memory = Some(Memory::filled(&self.gpu, bytes, 0x3c)?);
        }
        let base = memory.as_ref().map_or(0, Memory::address);
        for position in operands.iter().map(|&(position, _)| position).chain([scratch]) {
            addresses.set_address(position, base + addresses.address(position));
        }
        let events = [Event::new(&self.gpu)?, Event::new(&self.gpu)?];
        let mut times = vec![u64::MAX; candidates.len()];
        let mut failure = String::new();
        let mut fastest = u64::MAX;
        for (candidate, best) in candidates.iter_mut().zip(&mut times) {
            for run in 0..=TIMED_RUNS {
                let measured = self.measure(candidate, &addresses, scratch, &events);
                match measured {
                    Ok(time) => {
                        // The first run loads the kernel.
                        if run > 0 {
                            *best = time.min(*best);
                            fastest = time.min(fastest);
                        }
                        if is_hopeless(run, time, fastest) {
                            break;
                        }
                    }
                    Err(reason) => {
                        failure = reason;
                        break;
                    }
                }
            }
        }
        let fastest = (0..times.len()).min_by_key(|&candidate| times[candidate]);
        fastest.filter(|&candidate| times[candidate] < u64::MAX).ok_or(failure)
    }

    /// Nanoseconds of one run.
    fn measure(
        &self,
        candidate: &mut Implementation,
        addresses: &Operands<'_>,
        scratch: usize,
        events: &[Event; 2],
    ) -> Result<u64, String> {
        events[0].record()?;
        candidate.calls.iter_mut().try_for_each(|call| call.enqueue(addresses, scratch))?;
        events[1].record()?;
        self.gpu.wait()?;
        events[1].since(&events[0])
    }
}

#[cfg(test)]
mod tests {
    use super::is_hopeless;

    #[test]
    fn candidates_run_as_long_as_they_may_be_the_fastest() {
        const MS: u64 = 1_000_000;
        // Before anything was measured, none is hopeless.
        assert!(!is_hopeless(0, 900 * MS, u64::MAX) && !is_hopeless(1, 900 * MS, u64::MAX));
        // A first run may have loaded its kernel.
        assert!(!is_hopeless(0, 21 * MS, MS) && is_hopeless(0, 25 * MS, MS));
        // Any other that is a quarter longer will not become the fastest; the fastest itself goes on.
        assert!(is_hopeless(1, 130 * MS, 100 * MS) && !is_hopeless(2, 120 * MS, 100 * MS));
        assert!(!is_hopeless(3, 100 * MS, 100 * MS));
    }
}
