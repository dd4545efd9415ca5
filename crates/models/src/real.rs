use faer::traits::RealField;
use num_traits::Float;

/// The float of a model's linear parts: `f32` for the run under test, `f64` for its reference.
pub trait Real: Float + RealField + Default + Send + Sync + std::fmt::Debug + 'static {
    /// Widens (or keeps) a stored weight.
    fn from_f32(x: f32) -> Self;
    /// Rounds (or keeps) a constant.
    fn from_f64(x: f64) -> Self;
    /// The value as f64, exactly.
    fn into_f64(self) -> f64;
    /// The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.
    fn erf(self) -> Self;
}

impl Real for f32 {
    fn from_f32(x: f32) -> Self {
        x
    }
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn into_f64(self) -> f64 {
        self.into()
    }
    fn erf(self) -> Self {
        libm::erff(self)
    }
}

impl Real for f64 {
    fn from_f32(x: f32) -> Self {
        x.into()
    }
    fn from_f64(x: f64) -> Self {
        x
    }
    fn into_f64(self) -> f64 {
        self
    }
    fn erf(self) -> Self {
        libm::erf(self)
    }
}
