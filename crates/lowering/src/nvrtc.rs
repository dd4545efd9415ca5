//! CUDA C++ to PTX: NVRTC, loaded from the toolkit's own folder.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem::ManuallyDrop,
    path::Path,
    ptr,
};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, Symbol};
use serde::{Deserialize, Serialize};

use crate::{Arch, CudaSource, LoweringError, Toolkit, error::Result};

/// `nvrtcProgram`, an opaque handle.
type Handle = *mut c_void;
/// `nvrtcResult`; 0 is success.
type Status = c_int;

/// `NVRTC_SUCCESS`.
const SUCCESS: Status = 0;
/// `NVRTC_ERROR_COMPILATION`: the source is wrong and the log says where.
const COMPILATION: Status = 6;

/// What NVRTC made of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ptx {
    /// The PTX text.
    pub text: String,
    /// Warnings and remarks of the compiler; empty when there were none.
    pub log: String,
}

/// The NVRTC library of one toolkit.
pub struct Nvrtc {
    functions: Functions,
    includes: Vec<String>,
}

/// The functions used, with the signatures of `nvrtc.h`.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Handle) -> Status,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    log: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    ptx_size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    ptx: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
}

impl Nvrtc {
    /// Loads NVRTC from `toolkit`. `LD_LIBRARY_PATH` need not name the folder.
    ///
    /// # Errors
    /// [`LoweringError::Library`] when a library cannot be loaded or lacks a function.
    pub fn load(toolkit: &Toolkit) -> Result<Self> {
        // NVRTC opens its built-ins by bare name; the loader then finds the copy that is already in the process.
        // Neither library is ever unloaded: NVRTC keeps thread-local state whose destructors lie in it.
        let _builtins = open(toolkit.builtins_library())?;
        let library = open(toolkit.nvrtc_library())?;
        let path = toolkit.nvrtc_library();
        // SAFETY: each type is the C declaration of the function of that name in nvrtc.h (CUDA 11 to 13), and the
        // library outlives the pointers, being never unloaded.
        let functions = unsafe {
            Functions {
                version: symbol(&library, path, c"nvrtcVersion")?,
                error_string: symbol(&library, path, c"nvrtcGetErrorString")?,
                create: symbol(&library, path, c"nvrtcCreateProgram")?,
                destroy: symbol(&library, path, c"nvrtcDestroyProgram")?,
                compile: symbol(&library, path, c"nvrtcCompileProgram")?,
                log_size: symbol(&library, path, c"nvrtcGetProgramLogSize")?,
                log: symbol(&library, path, c"nvrtcGetProgramLog")?,
                ptx_size: symbol(&library, path, c"nvrtcGetPTXSize")?,
                ptx: symbol(&library, path, c"nvrtcGetPTX")?,
            }
        };
        let includes = toolkit
            .include_folders()
            .iter()
            .map(|folder| format!("--include-path={}", folder.display()))
            .collect();
        Ok(Self {
            functions,
            includes,
        })
    }

    /// Version of the library as (major, minor).
    ///
    /// # Errors
    /// [`LoweringError::Nvrtc`] when the library does not answer.
    pub fn version(&self) -> Result<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        let status = unsafe { (self.functions.version)(&mut major, &mut minor) };
        self.check("nvrtcVersion", status)?;
        Ok((major, minor))
    }

    /// Compiles `source` for `arch`.
    ///
    /// # Errors
    /// [`LoweringError::Cuda`] with the whole log when the source is refused, [`LoweringError::Nvrtc`] when the library
    /// fails otherwise (an architecture it does not know, for instance).
    pub fn compile(&self, source: &CudaSource, arch: Arch) -> Result<Ptx> {
        let program = Program::new(self, &source.text)?;
        let options: Vec<CString> = options(arch)
            .into_iter()
            .chain(self.includes.iter().cloned())
            .map(|option| c_string("nvrtcCompileProgram", option))
            .collect::<Result<_>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the handle is live, and the array holds as many NUL-terminated strings as the count says; both
        // outlive the call.
        let status = unsafe {
            (self.functions.compile)(program.handle, pointers.len() as c_int, pointers.as_ptr())
        };
        let log = program.text(
            "nvrtcGetProgramLog",
            self.functions.log_size,
            self.functions.log,
        )?;
        if status == COMPILATION {
            return Err(LoweringError::Cuda {
                kernel: source.kernel.clone(),
                arch,
                log,
            });
        }
        self.check("nvrtcCompileProgram", status)?;
        let text = program.text("nvrtcGetPTX", self.functions.ptx_size, self.functions.ptx)?;
        Ok(Ptx { text, log })
    }

    fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: NVRTC returns a static NUL-terminated string for any status.
        let reason = unsafe { CStr::from_ptr((self.functions.error_string)(status)) };
        Err(LoweringError::Nvrtc {
            call,
            reason: reason.to_string_lossy().into_owned(),
        })
    }
}

/// Options that decide the PTX, the same that CubeCL's CUDA runtime passes; header folders are added on top.
pub(crate) fn options(arch: Arch) -> Vec<String> {
    vec![format!("--gpu-architecture={arch}"), "-lineinfo".to_owned()]
}

/// A program handle, destroyed on drop.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, text: &str) -> Result<Self> {
        let text = c_string("nvrtcCreateProgram", text.to_owned())?;
        let mut handle = ptr::null_mut();
        // SAFETY: `text` is NUL-terminated and copied by NVRTC; no headers are passed, so both arrays may be null.
        let status = unsafe {
            (nvrtc.functions.create)(
                &mut handle,
                text.as_ptr(),
                ptr::null(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        nvrtc.check("nvrtcCreateProgram", status)?;
        Ok(Self { nvrtc, handle })
    }

    /// Reads one of the program's texts by its pair of functions.
    fn text(
        &self,
        call: &'static str,
        size: unsafe extern "C" fn(Handle, *mut usize) -> Status,
        read: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    ) -> Result<String> {
        let mut bytes = 0;
        // SAFETY: the handle is live, `bytes` is valid for the call.
        self.nvrtc
            .check(call, unsafe { size(self.handle, &mut bytes) })?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: NVRTC writes exactly the number of bytes it announced, the closing NUL included.
        self.nvrtc.check(call, unsafe {
            read(self.handle, buffer.as_mut_ptr().cast())
        })?;
        buffer.truncate(buffer.iter().position(|&byte| byte == 0).unwrap_or(bytes));
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from nvrtcCreateProgram and is destroyed once.
        unsafe { (self.nvrtc.functions.destroy)(&mut self.handle) };
    }
}

fn open(path: &Path) -> Result<ManuallyDrop<Library>> {
    // SAFETY: the libraries of the toolkit run no code on loading that has preconditions.
    unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_GLOBAL) }
        .map(ManuallyDrop::new)
        .map_err(|error| LoweringError::Library {
            path: path.to_owned(),
            reason: error.to_string(),
        })
}

/// # Safety
/// `T` must be the type of the C function `name`.
unsafe fn symbol<T: Copy>(library: &Library, path: &Path, name: &CStr) -> Result<T> {
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<T>(name.to_bytes_with_nul()) }
        .map(|symbol: Symbol<T>| *symbol)
        .map_err(|error| LoweringError::Library {
            path: path.to_owned(),
            reason: error.to_string(),
        })
}

fn c_string(call: &'static str, text: String) -> Result<CString> {
    CString::new(text).map_err(|error| LoweringError::Nvrtc {
        call,
        reason: format!("the argument holds a NUL byte at {}", error.nul_position()),
    })
}
