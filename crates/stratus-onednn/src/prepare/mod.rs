//! From steps to kernels: layouts and implementations chosen by measuring, layout changes inserted where kernels disagree.
//!
//! Feature maps of a program share one layout (channels last, or channels in blocks of 16): each is tried as a whole and the faster kept. Within it,
//! every convolution and fully connected layer takes its fastest implementation; the forward pass decides how the weights that it reads lie,
//! everything later takes them as they lie or pays for a reorder, whichever was faster.

mod choose;
mod layouts;
pub(crate) mod measure;
mod steps;

use crate::backend::OneDnn;
use crate::ops::Maker;
use measure::Bench;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use stratus_engine::ops::KernelSpec;
use stratus_engine::{
    Choices, EngineError, Layout, Precision, PrepareRequest, Prepared, PreparedStep, Program, Section, Step,
};

/// What takes no longer to measure is measured again, where it would decide against the first layout.
const WORTH_A_SECOND_LOOK: Duration = Duration::from_millis(500);

/// The layouts of feature maps that are tried.
const MAP_LAYOUTS: [&str; 2] = ["nhwc", "nChw16c"];

/// Prepares a program: as the request says, and as measured or by the library's own order where it says nothing.
pub(crate) fn prepare(
    backend: &OneDnn,
    program: &Program,
    request: &PrepareRequest,
) -> Result<Prepared, EngineError> {
    refuse_precision(backend, program)?;
    let mut bench = Bench::new().map_err(unprepared)?;
    let mut build = |layout, terms, rival: Option<&[Duration]>| {
        Builder::new(backend, program, request, &mut bench, layout)?.build(terms, rival)
    };
    if !request.choices.layouts.is_empty() || !request.measure {
        let alone = Terms { fallbacks: true, measure_maps: false };
        return Ok(build(MAP_LAYOUTS[0], alone, None)?.prepared);
    }
    let mut best: Option<(&str, Built)> = None;
    let mut refused = None;
    // A layout in which some convolution falls back to a reference kernel, or cannot run on AMX though it would fill its tiles, is worth a
    // look only where every layout is like that.
    for fallbacks in [false, true] {
        let terms = Terms { fallbacks, measure_maps: true };
        for layout in MAP_LAYOUTS {
            let start = Instant::now();
            match build(layout, terms, best.as_ref().map(|(_, best)| &best.times[..])) {
                Ok(built) => {
                    let Some((first, before)) = best.take() else {
                        best = Some((layout, built));
                        continue;
                    };
                    let mut kept = before;
                    if built.is_faster(&kept) && start.elapsed() < WORTH_A_SECOND_LOOK {
                        // Layouts are measured one after the other: something else may have slowed the first one down.
                        backend.measured.lock().unwrap_or_else(PoisonError::into_inner).clear();
                        kept = build(first, terms, None)?;
                    }
                    best = Some(if built.is_faster(&kept) { (layout, built) } else { (first, kept) });
                }
                Err(error) => refused = Some(error),
            }
        }
        if best.is_some() {
            break;
        }
    }
    match (best, refused) {
        (Some((_, best)), _) => Ok(best.prepared),
        (None, Some(error)) => Err(error),
        (None, None) => Err(EngineError::Placement("no layout of feature maps was tried".to_owned())),
    }
}

/// Says what is missing, where the library would only say that something is not implemented.
fn refuse_precision(backend: &OneDnn, program: &Program) -> Result<(), EngineError> {
    use stratus_engine::ops::Kernel as K;
    let on_onednn = |step: &&Step| {
        matches!(
            step.kernel,
            K::Conv2dForward(_)
                | K::Conv2dBackwardData(_)
                | K::Conv2dBackwardWeights(_)
                | K::LinearForward(_)
                | K::LinearBackwardData(_)
                | K::LinearBackwardWeights(_)
                | K::LinearUpdate(_)
        )
    };
    // What we have kernels of our own for has none for these types either.
    let unknown = matches!(program.precision, Precision::F16 | Precision::F64);
    if let Some(step) = program.steps.first().filter(|_| unknown) {
        return Err(EngineError::Unsupported {
            backend: "onednn".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason: format!("it computes in f32 and bf16, not in {}", program.precision),
        });
    }
    let first = program.steps.iter().find(on_onednn).filter(|_| !backend.supports(program.precision));
    first.map_or(Ok(()), |step| {
        Err(EngineError::Unsupported {
            backend: "onednn".to_owned(),
            kernel: step.kernel.name().to_owned(),
            layer: program.layer_name(step),
            reason: format!(
                "oneDNN has kernels for {} on processors with AVX-512 alone, and may use {} here; take f32",
                program.precision,
                backend.context.instruction_set()
            ),
        })
    })
}

/// Whether a time is shorter by more than what measurements differ from run to run. Otherwise the earlier candidate stays, so that plans do.
fn is_faster(time: Duration, than: Duration) -> bool {
    time.as_secs_f64() < 0.97 * than.as_secs_f64()
}

/// Nothing can be prepared, for a reason of the library's.
fn unprepared(reason: String) -> EngineError {
    EngineError::Unsupported {
        backend: "onednn".to_owned(),
        kernel: "attributes".to_owned(),
        layer: "any".to_owned(),
        reason,
    }
}

/// A program with its kernels.
struct Built {
    prepared: Prepared,
    /// What was measured up to each step of the source; ends early where a rival could not be reached any more.
    times: Vec<Duration>,
    /// Whether it was given up.
    given_up: bool,
}

impl Built {
    fn is_faster(&self, than: &Self) -> bool {
        !self.given_up && is_faster(total(&self.times), total(&than.times))
    }
}

fn total(times: &[Duration]) -> Duration {
    times.last().copied().unwrap_or_default()
}

/// Whether a program that has taken `time` up to a step loses against a rival even if all that follows takes a quarter less than there.
fn is_hopeless(time: Duration, position: usize, rival: &[Duration]) -> bool {
    let rest = total(rival) - rival[position];
    time + rest * 3 / 4 > total(rival)
}

/// On what terms a program is built.
#[derive(Clone, Copy)]
struct Terms {
    /// Whether a step may run on a reference kernel where the library has no other, and without AMX where that has no kernel.
    fallbacks: bool,
    /// Whether the kernels that walk maps are measured too: where layouts of maps are compared.
    measure_maps: bool,
}

struct Builder<'a> {
    backend: &'a OneDnn,
    maker: Maker<'a>,
    request: &'a PrepareRequest,
    source: &'a Program,
    /// The source's values and those that were added; the steps so far.
    program: Program,
    /// Per value, where it is decided.
    layouts: Vec<Option<Layout>>,
    steps: Vec<PreparedStep>,
    choices: Choices,
    bench: &'a mut Bench,
    /// What was measured of the steps so far.
    time: Duration,
    /// Into how many tiles the batch is cut for the step at hand.
    tiles: usize,
    /// The section that is being built.
    section: Option<OpenSection>,
}

/// A section whose steps are being prepared.
struct OpenSection {
    /// As the source has it, but for its place: its first step so far, which what is put before it moves on; its steps are counted at the end.
    section: Section,
    /// Changes of layout of what its tiles add up, to be made when all have been.
    behind: Vec<(Step, PreparedStep)>,
}

impl<'a> Builder<'a> {
    fn new(
        backend: &'a OneDnn,
        source: &'a Program,
        request: &'a PrepareRequest,
        bench: &'a mut Bench,
        map_layout: &str,
    ) -> Result<Self, EngineError> {
        let (context, cpu) = (&backend.context, &backend.cpu);
        let attributes = |relu| context.attributes(relu).map_err(unprepared);
        let maker = Maker { context, cpu, plain: attributes(false)?, relu: attributes(true)?, wanted: None };
        let mut program = source.clone();
        program.steps.clear();
        program.sections.clear();
        let mut builder = Self {
            backend,
            maker,
            request,
            source,
            layouts: vec![None; program.values.len()],
            program,
            steps: Vec::new(),
            choices: Choices::default(),
            bench,
            time: Duration::ZERO,
            tiles: 1,
            section: None,
        };
        builder.lay_out_maps(map_layout)?;
        Ok(builder)
    }

    /// Prepares every step, or as many as it takes to see that `rival` cannot be reached.
    fn build(mut self, terms: Terms, rival: Option<&[Duration]>) -> Result<Built, EngineError> {
        let source = self.source;
        let mut times = Vec::with_capacity(source.steps.len());
        let mut given_up = false;
        for (position, step) in source.steps.iter().enumerate() {
            self.enter(position);
            self.step(step, terms).map_err(|reason| EngineError::Unsupported {
                backend: "onednn".to_owned(),
                kernel: step.kernel.name().to_owned(),
                layer: self.source.layer_name(step),
                reason,
            })?;
            times.push(self.time);
            given_up = rival.is_some_and(|rival| is_hopeless(self.time, position, rival));
            if given_up {
                break;
            }
        }
        self.leave();
        let layouts = self
            .layouts
            .into_iter()
            .zip(&self.program.values)
            .map(|(layout, value)| layout.unwrap_or_else(|| Layout::plain(&value.shape)))
            .collect();
        let prepared = Prepared { program: self.program, layouts, steps: self.steps, choices: self.choices };
        Ok(Built { prepared, times, given_up })
    }

    /// Opens and closes sections as the source's step at `position` needs it.
    fn enter(&mut self, position: usize) {
        let section = self.source.section_of(position);
        if section.is_none_or(|section| section.first == position) {
            self.leave();
        }
        self.tiles = section.map_or(1, |section| section.tiles);
        if let (Some(section), None) = (section, &self.section) {
            let section = Section { first: self.program.steps.len(), ..*section };
            self.section = Some(OpenSection { section, behind: Vec::new() });
        }
    }

    fn leave(&mut self) {
        let Some(OpenSection { section, behind }) = self.section.take() else { return };
        let count = self.program.steps.len() - section.first;
        self.program.sections.push(Section { count, ..section });
        for (step, kernel) in behind {
            self.push(step, kernel);
        }
    }

    fn push(&mut self, step: Step, kernel: PreparedStep) {
        self.program.steps.push(step);
        self.steps.push(kernel);
    }

    /// Adds a step that is run once, before the section at hand.
    fn push_before(&mut self, step: Step, kernel: PreparedStep) {
        let Some(OpenSection { section, .. }) = &mut self.section else { return self.push(step, kernel) };
        self.program.steps.insert(section.first, step);
        self.steps.insert(section.first, kernel);
        section.first += 1;
    }

    /// Adds a step that is run once, behind the section at hand.
    fn push_behind(&mut self, step: Step, kernel: PreparedStep) {
        match &mut self.section {
            Some(section) => section.behind.push((step, kernel)),
            None => self.push(step, kernel),
        }
    }
}
