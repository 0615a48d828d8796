//! Kernels on registers with a known number of floating-point operations.

use super::instructions::REGISTERS;

/// A loop written in assembly, so that the compiler does not change the number of instructions. Each
/// x is a chain of dependent instructions; `REGISTERS` of them keep all units of the CPU busy. Two more
/// registers hold the constants m and c.
pub struct Kernel {
    pub name: &'static str,
    pub precision: Precision,
    /// Elements per register.
    pub lanes: fn() -> usize,
    pub form: Form,
    pub is_supported: fn() -> bool,
    /// Loads x, m and c from the first argument, computes x for a positive number of iterations
    /// (the second argument), and stores x.
    ///
    /// # Safety
    ///
    /// The machine supports the kernel, and the pointer is to (`REGISTERS` + 2) × lanes elements.
    pub code: unsafe fn(*mut u8, u64),
}

#[derive(Clone, Copy)]
pub enum Precision {
    Single,
    Double,
}

/// The computation of each x, with two operations.
#[derive(Clone, Copy)]
pub enum Form {
    /// x * m + c, in two instructions.
    Two,
    /// x * m + c, fused.
    Fused,
    /// x + m * c, fused.
    #[cfg(target_arch = "aarch64")]
    Added,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Double => "double",
        }
    }
}

/// f32 and f64.
trait Element: Copy + From<f32> {}

impl Element for f32 {}
impl Element for f64 {}

/// Start values: distinct small numbers x, and m and c such that x neither overflows nor becomes
/// denormal.
fn start<T: Element>(lanes: usize, form: Form) -> Vec<T> {
    let (m, c) = constants(form);
    let x = (0..REGISTERS * lanes).map(|index| 1.0 + f32::from(u16::try_from(index).unwrap_or(0)));
    let constants = [m, c]
        .into_iter()
        .flat_map(|value| std::iter::repeat_n(value, lanes));
    x.chain(constants).map(T::from).collect()
}

fn constants(form: Form) -> (f32, f32) {
    match form {
        Form::Two | Form::Fused => (0.75, 1.5),
        #[cfg(target_arch = "aarch64")]
        Form::Added => (0.75, 1e-3),
    }
}

impl Kernel {
    /// Floating-point operations per iteration; a fused multiply-add counts as two.
    pub fn flops(&self) -> u64 {
        2 * (REGISTERS * (self.lanes)()) as u64
    }

    pub fn run(&self, iterations: u64) {
        match self.precision {
            Precision::Single => drop(self.compute::<f32>(iterations)),
            Precision::Double => drop(self.compute::<f64>(iterations)),
        }
    }

    /// Returns the final x.
    fn compute<T: Element>(&self, iterations: u64) -> Vec<T> {
        assert!((self.is_supported)() && iterations > 0);
        let lanes = (self.lanes)();
        let mut state = start::<T>(lanes, self.form);
        // SAFETY: the kernel is supported, and `start` returns the elements of all registers.
        unsafe { (self.code)(state.as_mut_ptr().cast(), iterations) };
        state.truncate(REGISTERS * lanes);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{instructions, kernels},
        *,
    };

    const ITERATIONS: u64 = 100;

    /// Both follow IEEE 754, so that the results are identical.
    macro_rules! check {
        ($kernel:expr, $element:ty) => {{
            let (m, c) = constants($kernel.form);
            let (m, c) = (<$element>::from(m), <$element>::from(c));
            let mut expected = start::<$element>(($kernel.lanes)(), $kernel.form);
            expected.truncate(REGISTERS * ($kernel.lanes)());
            for x in &mut expected {
                for _ in 0..ITERATIONS {
                    *x = match $kernel.form {
                        Form::Two => *x * m + c,
                        Form::Fused => x.mul_add(m, c),
                        #[cfg(target_arch = "aarch64")]
                        Form::Added => m.mul_add(c, *x),
                    };
                }
            }
            let bits = |all: &[$element]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let found = $kernel.compute::<$element>(ITERATIONS);
            assert_eq!(bits(&found), bits(&expected), "{}", $kernel.name);
        }};
    }

    #[test]
    fn kernels_compute_the_declared_flops() {
        let mut checked = 0;
        for kernel in kernels() {
            match kernel.precision {
                Precision::Single => check!(kernel, f32),
                Precision::Double => check!(kernel, f64),
            }
            checked += 1;
        }
        assert!(
            checked >= 4,
            "scalars and the smallest vectors are everywhere"
        );
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = instructions::all()
            .iter()
            .map(|kernel| kernel.name)
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), instructions::all().len());
    }
}
