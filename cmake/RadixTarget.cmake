# SPDX-License-Identifier: Apache-2.0
# Copyright The radixshmem authors

# radix_target(<name>): the warnings, include paths and sanitizers that all of our targets share.
function(radix_target name)
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}/csrc")
  target_include_directories(${name} SYSTEM PUBLIC "${CMAKE_SOURCE_DIR}/csrc/third_party")
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Werror)
  target_link_libraries(${name} PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  if(CMAKE_UNITY_BUILD)  # which makes g++ take each .cc for a header
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
  endif()
  if(RADIX_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${RADIX_SANITIZE}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${name} PUBLIC -fsanitize=${RADIX_SANITIZE})
    # g++ says of every atomic_thread_fence that the thread sanitizer does not model it.
    if(RADIX_SANITIZE MATCHES "thread")
      target_compile_options(${name} PRIVATE -Wno-tsan)
    endif()
  endif()
endfunction()
