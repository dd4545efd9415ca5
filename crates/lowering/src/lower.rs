//! The whole way: CUDA C++ to PTX to machine code, each step kept in the cache.

use std::sync::OnceLock;

use crate::{
    Arch, Assembly, Cache, CudaSource, Nvrtc, Ptx, Report, Resources, Sass, Toolkit,
    cache::Key,
    error::Result,
    nvrtc,
    ptxas::{self, assemble},
};

/// Bumped when what is cached changes its meaning.
const FORMAT: &str = "flashcube-lowering/1";

/// Lowers kernels with one toolkit and one cache. NVRTC is loaded when the first source misses the cache.
///
/// ```no_run
/// use flashcube_lowering::{Arch, CudaSource, Expect, Lowering};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = r#"extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2.0f; }"#;
/// let source = CudaSource::new("scale", text, 0);
/// let lowered = Lowering::find()?.lower(&source, Arch::Sm90a)?;
/// let report = lowered.report()?;
/// println!("{report}");
/// let required = &["FADD|FMUL"];
/// assert!(report.check(&Expect { required, ..Expect::CLEAN }).is_ok());
/// # Ok(())
/// # }
/// ```
pub struct Lowering {
    toolkit: Toolkit,
    version: String,
    cache: Cache,
    nvrtc: OnceLock<Nvrtc>,
}

/// One kernel lowered for one architecture.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The source it came from.
    pub source: CudaSource,
    /// The architecture.
    pub arch: Arch,
    /// The PTX and NVRTC's remarks.
    pub ptx: Ptx,
    /// The machine code's listing and ptxas' report.
    pub assembly: Assembly,
}

impl Lowering {
    /// With the toolkit that [`Toolkit::find`] finds and the user's cache.
    ///
    /// # Errors
    /// Those of [`Toolkit::find`] and [`Toolkit::version`].
    pub fn find() -> Result<Self> {
        Self::new(Toolkit::find()?, Cache::user())
    }

    /// With a given toolkit and cache.
    ///
    /// # Errors
    /// Those of [`Toolkit::version`].
    pub fn new(toolkit: Toolkit, cache: Cache) -> Result<Self> {
        Ok(Self {
            version: toolkit.version()?,
            toolkit,
            cache,
            nvrtc: OnceLock::new(),
        })
    }

    /// The toolkit.
    pub fn toolkit(&self) -> &Toolkit {
        &self.toolkit
    }

    /// CUDA C++ to PTX.
    ///
    /// # Errors
    /// [`crate::LoweringError::Cuda`] with NVRTC's log when the source is refused; those of [`Nvrtc::load`].
    pub fn ptx(&self, source: &CudaSource, arch: Arch) -> Result<Ptx> {
        let key = self.key("ptx", &source.text, arch, &nvrtc::options(arch));
        self.cache
            .get_or(&key, || self.nvrtc()?.compile(source, arch))
    }

    /// CUDA C++ to machine code.
    ///
    /// # Errors
    /// Those of [`Self::ptx`] and [`assemble`].
    pub fn lower(&self, source: &CudaSource, arch: Arch) -> Result<Lowered> {
        let ptx = self.ptx(source, arch)?;
        let key = self.key("sass", &ptx.text, arch, &ptxas::options(arch));
        let assembly = self.cache.get_or(&key, || {
            assemble(&self.toolkit, &source.kernel, &ptx.text, arch)
        })?;
        Ok(Lowered {
            source: source.clone(),
            arch,
            ptx,
            assembly,
        })
    }

    fn nvrtc(&self) -> Result<&Nvrtc> {
        if let Some(loaded) = self.nvrtc.get() {
            return Ok(loaded);
        }
        let loaded = Nvrtc::load(&self.toolkit)?;
        Ok(self.nvrtc.get_or_init(|| loaded))
    }

    fn key(&self, step: &str, input: &str, arch: Arch, options: &[String]) -> Key {
        let arch = arch.to_string();
        let fixed = [FORMAT, step, input, &arch, &self.version];
        Key::of(fixed.into_iter().chain(options.iter().map(String::as_str)))
    }
}

impl Lowered {
    /// The machine code as instructions.
    ///
    /// # Errors
    /// [`crate::LoweringError::Output`] when the listing holds none.
    pub fn sass(&self) -> Result<Sass> {
        Sass::parse(&self.assembly.sass)
    }

    /// Registers, memory, warnings and instruction counts.
    ///
    /// # Errors
    /// [`crate::LoweringError::Output`] when the toolkit's programs print something unknown.
    pub fn report(&self) -> Result<Report> {
        Ok(Report::new(
            &self.source.kernel,
            self.arch,
            self.source.dynamic_smem_bytes,
            Resources::parse(&self.assembly.log)?,
            &self.sass()?,
        ))
    }
}
