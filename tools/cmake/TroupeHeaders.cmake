# Copies the headers that an application includes, and all their includes, to ${binary}/troupe. In
# the copies #include "messages/..." becomes "troupe/messages/...", and macros are prefixed with
# TROUPE_, to avoid name clashes. Variables: source, the tree; binary; roots, the headers to begin
# with.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${binary})
set(pending ${roots})
set(seen)
while(pending)
  list(POP_FRONT pending header)
  if(header IN_LIST seen)
    continue()
  endif()
  list(APPEND seen ${header})
  file(READ ${source}/${header} text)
  string(REGEX MATCHALL "#include \"[^\"]+\"" includes "${text}")
  foreach(include ${includes})
    string(REGEX REPLACE "#include \"(.*)\"" "\\1" include "${include}")
    list(APPEND pending ${include})
  endforeach()
  string(REGEX REPLACE "#include \"" "#include \"troupe/" text "${text}")
  string(REGEX REPLACE "([^A-Za-z_])(CHECK|RETURN_IF_ERROR|ASSIGN_OR_RETURN_?)\\(" "\\1TROUPE_\\2(" text "${text}")
  file(WRITE ${binary}/troupe/${header} "${text}")
endwhile()
